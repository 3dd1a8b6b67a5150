"""The lab as a fixture. Tests marked `lab` are skipped, and counted, where there is none; MUSTER_LAB=1 makes that an error."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "lab"))

import lab as labs


@cache
def lacking() -> str:
    """Return what this machine lacks for real hosts, with the next step; empty when nothing is."""
    if os.geteuid() != 0:
        return "the lab needs root"
    for tool in ("docker", "ssh", "ssh-keygen"):
        if shutil.which(tool) is None:
            return f"the lab needs {tool}; next: tests/lab/engine.sh install"
    if subprocess.run(["docker", "version"], capture_output=True, check=False).returncode:
        return "no Docker Engine answers; next: tests/lab/engine.sh start"
    return ""


def pytest_configure() -> None:
    # A shell that runs the tests in the background has them ignore Ctrl-C, and every process that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("lab") and lacking():
        if os.environ.get("MUSTER_LAB") == "1":
            pytest.fail(lacking(), pytrace=False)
        pytest.skip(lacking())


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Return two hosts of this test session's own; mark tests that use it with `pytest.mark.lab`."""
    labs.sweep()
    prefix, folder = f"{labs.TESTS}-{os.getpid()}", tmp_path_factory.mktemp("lab")
    try:
        yield labs.up(2, prefix=prefix, folder=folder)
    finally:
        labs.down(prefix=prefix, folder=folder)


@pytest.fixture(scope="session")
def trainer_image():
    """Return the name of the trainer's CPU image, built from the tree as it is for this test session alone."""
    labs.base_image()
    tag = f"muster:test-{os.getpid()}"
    argv = ["build", "--variant", "cpu", "--base", "muster-lab-base", "--tag", tag]
    done = subprocess.run(
        [sys.executable, "-m", "orchestrate", *argv], cwd=labs.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    yield tag
    labs.docker("rmi", "--force", tag)
