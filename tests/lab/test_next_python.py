"""The base install under the next Debian's Python, without torch."""

from __future__ import annotations

import os
import subprocess

import lab as labs
import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SCRIPT = """
mkdir /tree && tar -x -C /tree && cd /tree
python3 -m venv /venv
/venv/bin/pip install --quiet --require-hashes -r requirements/dev.lock
/venv/bin/pip install --quiet --no-deps --no-build-isolation .
/venv/bin/python -c 'import sys; assert sys.version_info >= (3, 13), sys.version'
! /venv/bin/python -c 'import torch' 2>/dev/null
cd / && /venv/bin/orchestrate --help >/dev/null && cd /tree
/venv/bin/python -m pytest -q -m 'not lab and not torch and not slow' -p no:cacheprovider
"""


def test_everything_that_needs_no_torch_passes_on_python_3_13():
    labs.base_image("trixie", "muster-lab-trixie", "openssh-server")
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=labs.ROOT, capture_output=True, check=True,
    ).stdout.split(b"\0")  # fmt: skip
    there = b"\0".join(name for name in files if name and (labs.ROOT / os.fsdecode(name)).exists())
    tree = subprocess.run(
        ["tar", "-c", "--null", "--files-from=-"], cwd=labs.ROOT, input=there, capture_output=True, check=True
    ).stdout
    argv = ["docker", "run", "--rm", "--interactive", "--init"]
    for name in ("PIP_INDEX_URL", "PIP_PROXY", "HTTPS_PROXY", "PIP_DEFAULT_TIMEOUT"):
        argv += [f"--env={name}"] if name in os.environ else []
    if "PIP_CERT" in os.environ:
        argv += ["--env=PIP_CERT=/run/ca.pem", f"--volume={os.environ['PIP_CERT']}:/run/ca.pem:ro"]
    done = subprocess.run(
        [*argv, "muster-lab-trixie", "bash", "-euc", SCRIPT], input=tree, capture_output=True, timeout=900, check=False
    )
    said = done.stdout.decode()[-4000:] + done.stderr.decode()[-4000:]
    assert done.returncode == 0, said
    assert " passed" in said
