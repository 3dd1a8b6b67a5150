import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrate import archive

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=130
)


def packed(files):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("a-link")
        link.type, link.linkname = tarfile.SYMTYPE, "elsewhere"
        tar.addfile(link)
    return whole.getvalue()


def chunks(data, size):
    return (data[i : i + size] for i in range(0, len(data), size))


def unpacked(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {m.name: tar.extractfile(m).read() if m.isreg() else m.linkname for m in tar}


@given(
    st.dictionaries(
        NAMES.filter(lambda n: "/" not in n and n not in {".", "..", "a-link"}), st.binary(max_size=2000), max_size=6
    ),
    st.integers(1, 5000),
    st.data(),
)
def test_what_is_left_out_is_gone_and_the_rest_is_the_same(files, size, data):
    gone = data.draw(st.sets(st.sampled_from(sorted(files)))) if files else set()
    rest = unpacked(b"".join(archive.without(chunks(packed(files), size), gone)))
    assert rest == {name: content for name, content in files.items() if name not in gone} | {"a-link": "elsewhere"}


def test_a_large_member_is_never_held_whole():
    pieces = archive.without(chunks(packed({"big": bytes(40 << 20), "gone": bytes(1 << 20)}), 1 << 16), {"gone"})
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) <= 1 << 20
    assert 40 << 20 < sum(sizes) < 41 << 20


def test_a_stream_that_is_cut_is_an_error_and_no_shorter_archive():
    data = packed({"a": bytes(5000)})
    with pytest.raises(tarfile.ReadError):
        list(archive.without(chunks(data[:3000], 1000), set()))
