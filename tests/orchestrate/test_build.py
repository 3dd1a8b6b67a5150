"""What a build depends on is in its command line and its labels; nothing is made up."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrate import build, cli
from orchestrate.errors import Refused, UsageError
from trainer import contract

DIGEST = "sha256:" + "a" * 64
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")


@pytest.fixture
def root(tmp_path):
    for folder in ("trainer", "requirements", "docs"):
        (tmp_path / folder).mkdir()
    for name in ("Dockerfile", ".dockerignore", "trainer/contract.py", "docs/x.md"):
        (tmp_path / name).write_text("1\n")
    for variant in build.BASES:
        (tmp_path / f"requirements/train-{variant}.lock").write_text(f"torch=={variant}\n")
    return tmp_path


@pytest.fixture
def commit(root):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    for argv in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "x")):
        subprocess.run([*GIT, *argv], cwd=root, check=True)
    return subprocess.run(
        [*GIT, "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def recipe(root, **more):
    return build.Recipe(**{"root": root, "variant": "cpu", "base": "debian:12", "tag": "muster:x"} | more)


def test_the_command_names_all_that_the_build_depends_on(root, commit):
    argv = build.command(recipe(root, ca_file=root / "a b.pem", wheels=root / "w"), cache=False)
    assert argv[:4] == ["docker", "buildx", "build", "--load"]
    assert f"--build-arg=REVISION={commit}" in argv
    assert f"--build-arg=LOCK_SHA256={hashlib.sha256(b'torch==cpu' + bytes([10])).hexdigest()}" in argv
    assert f"--build-arg=CONTRACT={contract.VERSION}" in argv
    assert "--build-arg=BASE=debian:12" in argv
    assert f"--secret=id=ca,src={root}/a b.pem" in argv
    assert f"--build-context=wheels={root}/w" in argv
    assert argv[-2:] == ["--no-cache", str(root)]
    plain = build.command(recipe(root))
    assert not any(word.startswith(("--secret", "--build-context", "--no-cache", "--privileged")) for word in plain)


def test_the_age_of_an_image_is_that_of_its_commit(root, commit):
    assert int(build.arguments(recipe(root))["SOURCE_DATE_EPOCH"]) > 1_500_000_000


def test_a_change_of_what_the_image_holds_is_told_and_another_is_not(root, commit):
    (root / "docs/x.md").write_text("2\n")
    assert build.revision(root) == commit
    (root / "trainer/new.py").write_text("")
    assert build.revision(root) == f"{commit}-dirty"


def test_outside_git_the_revision_is_unknown_and_nothing_is_invented(root):
    assert build.revision(root) == "unknown"
    assert build.arguments(recipe(root))["SOURCE_DATE_EPOCH"] == "0"


def test_a_base_is_a_full_version_until_a_registry_gave_its_digest(root):
    for variant, base in build.BASES.items():
        assert build.base_of(root, variant) == base
        assert "@" not in base
        assert not base.endswith((":latest", ":stable"))
    build.pin(root, "cpu", DIGEST)
    build.pin(root, "cuda", "sha256:" + "b" * 64)
    assert build.base_of(root, "cpu") == f"{build.BASES['cpu']}@{DIGEST}"
    assert build.base_of(root, "cuda").endswith("b" * 64)


def test_a_pin_of_another_tag_does_not_count(root, monkeypatch):
    build.pin(root, "cpu", DIGEST)
    monkeypatch.setitem(build.BASES, "cpu", "debian:trixie-1")
    assert build.base_of(root, "cpu") == "debian:trixie-1"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"cpu": 3}', '{"cpu": {"tag": "x"}}', '{"cpu": {"tag": "x", "digest": "y"}}']
)
def test_pins_that_are_damaged_are_told_with_their_file(root, text):
    (root / build.PINS).write_text(text)
    with pytest.raises(UsageError, match="pin") as caught:
        build.base_of(root, "cpu")
    assert build.PINS in caught.value.where
    assert "--pin" in caught.value.next_step


def test_what_is_no_digest_is_not_written_down(root):
    with pytest.raises(Refused, match="no digest"):
        build.pin(root, "cpu", "latest")
    assert not (root / build.PINS).exists()


def test_files_that_are_missing_are_told_before_anything_is_built(root):
    for field, option in (("ca_file", "--ca-file"), ("wheels", "--wheels"), ("pip_conf", "--pip-conf")):
        with pytest.raises(UsageError, match="there is no") as caught:
            build.build(recipe(root, **{field: root / "nowhere"}))
        assert caught.value.where == option


def test_a_path_that_buildx_would_cut_at_its_comma_is_refused(root):
    (root / "a,b.pem").touch()
    with pytest.raises(UsageError, match="comma"):
        build.build(recipe(root, ca_file=root / "a,b.pem"))


def test_pips_configuration_is_a_secret_of_the_build(root):
    argv = build.command(recipe(root, pip_conf=root / "pip.conf"))
    assert f"--secret=id=pip.conf,src={root / 'pip.conf'}" in argv


def test_a_build_that_fails_says_what_to_try(root, monkeypatch):
    monkeypatch.setattr(build, "_run", lambda argv: 17)
    with pytest.raises(Refused, match="failed with exit code 17") as caught:
        build.build(recipe(root))
    assert "--base" in caught.value.next_step


def test_without_the_docker_command_the_build_says_so(root, monkeypatch):
    monkeypatch.setenv("PATH", str(root))
    with pytest.raises(Refused, match="not installed"):
        build.build(recipe(root))


def test_a_variant_that_there_is_not_is_a_usage_error(capsys):
    assert cli.run(["build", "--variant", "tpu"]) == 2
    assert "--variant" in capsys.readouterr().err


def test_this_checkout_has_all_that_a_build_reads():
    root = build.checkout()
    for variant in build.BASES:
        assert recipe(root, variant=variant).lock.is_file()
        assert build.base_of(root, variant).startswith(build.BASES[variant])


def test_every_file_that_names_a_base_names_the_same():
    tree = Path(build.__file__).parents[1]
    for name, variants in (("Dockerfile", ("cuda",)), ("docker-compose.yml", ("cpu",)), ("docker-compose.gpu.yml", ("cuda",)), ("docs/image.md", ("cuda", "cpu"))):  # fmt: skip
        for variant in variants:
            assert build.BASES[variant] in (tree / name).read_text(), name
