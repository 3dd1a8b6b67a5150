import hashlib
import tomllib
from importlib.resources import files

import pytest

torch = pytest.importorskip("torch")

from trainer.config import Config  # noqa: E402 - after the test for torch
from trainer.data.corpus import read_corpus  # noqa: E402
from trainer.data.tokenizer import choose_tokenizer  # noqa: E402
from trainer.errors import UsageError  # noqa: E402
from trainer.tasks import lm  # noqa: E402
from trainer.world import World  # noqa: E402

pytestmark = pytest.mark.torch

ALONE = World(0, 0, 1, 1, torch.device("cpu"))


def test_the_novel_is_the_one_that_its_provenance_describes():
    content = files("trainer.data").joinpath("moby_dick.txt").read_bytes()
    about = tomllib.loads(files("trainer.data").joinpath("moby_dick.toml").read_text(encoding="utf-8"))
    assert len(content) == about["bytes"] > 1_000_000
    assert hashlib.sha256(content).hexdigest() == about["sha256"]
    assert {"title", "author", "licence", "source", "obtained"} <= set(about)


def test_a_folder_of_texts_is_read_in_the_order_of_names(tmp_path):
    (tmp_path / "b.txt").write_text("zwei")
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.txt").write_text("eins")
    (tmp_path / "notes.md").write_text("none of this")
    assert read_corpus(str(tmp_path)).text == "eins\nzwei"
    assert read_corpus(str(tmp_path / "b.txt")).text == "zwei"


def test_texts_that_cannot_be_used_are_refused_by_name(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty").mkdir()
    for path, why in ((tmp_path / "none", "no such file"), (tmp_path / "empty", "no .txt"), (tmp_path, "latin.txt")):
        with pytest.raises(UsageError, match=why):
            read_corpus(str(path))
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(UsageError, match="blocks of 64 tokens"):
        lm.datasets(Config(data=str(tmp_path / "short.txt")), ALONE, tmp_path)


def test_held_out_text_is_never_trained_on():
    corpus = read_corpus("")
    seen, unseen = corpus.halves()
    assert seen + unseen == corpus.text
    assert len(unseen) > 50_000


def test_a_trained_tokenizer_is_kept_and_found_again(tmp_path):
    text = "the whale, the white whale, and the ship\n" * 50 + "Zwölf Boxkämpfer — naïve"
    first = choose_tokenizer("bpe", 300, text, tmp_path, ALONE)
    (kept,) = tmp_path.iterdir()
    assert first.vocab <= 300
    assert len(first.encode(text)) < len(text.encode())
    assert choose_tokenizer("bpe", 300, text, tmp_path, ALONE) == first
    loaded = choose_tokenizer(str(kept), 0, "", tmp_path, ALONE)
    assert loaded == first
    from tokenizers import Tokenizer

    assert Tokenizer.from_str(first.spec).decode(first.encode(text).tolist()) == text


def test_bytes_are_their_own_tokens(tmp_path):
    tokenizer = choose_tokenizer("byte", 0, "", tmp_path, ALONE)
    assert tokenizer.vocab == 256
    assert bytes(tokenizer.encode("Wal—").tolist()).decode() == "Wal—"


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    for path in (tmp_path / "x.json", tmp_path / "none"):
        with pytest.raises(UsageError, match="tokenizer"):
            choose_tokenizer(str(path), 0, "", tmp_path, ALONE)
