"""What known_hosts files say of a key, as ssh(1) reads them."""

import base64
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrate.ssh.known_hosts import Verdict, fingerprint, judge, known, lookup_name, parse_known_hosts

OURS, OTHER = b"our key", b"another key"


def line(names, key=OURS, kind="ssh-ed25519"):
    return f"{names} {kind} {base64.b64encode(key).decode()} a comment\n"


def says(text, name, key=OURS):
    return judge(known(parse_known_hosts(text, "known"), name), key)


def test_a_key_is_known_by_name_pattern_or_port():
    for names in ("gpu01", "x,gpu01,y", "gpu*", "gpu0?", "*,!gpu02", "GPU01"):
        assert says(line(names), "gpu01")[0] is Verdict.KNOWN
    assert says(line("[gpu01]:2222"), "[gpu01]:2222")[0] is Verdict.KNOWN
    assert says(line("[gpu01]:2222"), "gpu01")[0] is Verdict.UNKNOWN
    assert says(line("*,!gpu01"), "gpu01")[0] is Verdict.UNKNOWN
    assert says(line("gpu[0-9]1"), "gpu01")[0] is Verdict.UNKNOWN


def test_a_key_without_a_port_serves_for_any_port_of_the_host():
    assert says(line("gpu01"), "[gpu01]:2222")[0] is Verdict.KNOWN
    assert says(line("gpu01", OTHER) + line("[gpu01]:2222"), "[gpu01]:2222")[0] is Verdict.KNOWN


def test_another_key_is_a_changed_one_and_names_the_line():
    assert says("# comment\n\n" + line("gpu01", OTHER), "gpu01") == (Verdict.CHANGED, "known:3")


def test_one_of_several_keys_is_enough():
    assert says(line("gpu01", OTHER) + line("gpu01"), "gpu01") == (Verdict.KNOWN, "known:2")


def test_a_revoked_key_is_refused_though_another_line_knows_it():
    assert says(line("gpu01") + "@revoked " + line("*"), "gpu01")[0] is Verdict.REVOKED


def test_an_authority_of_certificates_makes_no_plain_key_known():
    assert says("@cert-authority " + line("*"), "gpu01")[0] is Verdict.UNKNOWN


def test_names_are_filed_with_their_port_unless_it_is_22():
    assert lookup_name("GPU01", 22) == "gpu01"
    assert lookup_name("::1", 2222) == "[::1]:2222"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_fingerprints_are_those_of_ssh_keygen(tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    told = subprocess.run(["ssh-keygen", "-lf", tmp_path / "key.pub"], check=True, capture_output=True, text=True)
    blob = base64.b64decode((tmp_path / "key.pub").read_text().split()[1])
    assert fingerprint(blob) == told.stdout.split()[1]


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=300))
def test_no_text_of_a_file_makes_a_key_known_that_it_does_not_hold(text):
    assert says(text, "gpu01")[0] in {Verdict.UNKNOWN, Verdict.CHANGED}
