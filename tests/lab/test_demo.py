"""The first thing anybody runs: it works with an engine, without one, and on a machine with one GPU that it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys

import lab as labs
import pytest


def demo(folder, **environment):
    argv = [sys.executable, "-m", "orchestrate", "demo", "--steps", "5"]
    return subprocess.run(
        argv, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )


def finished(done, folder):
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert "verdict:" in done.stdout
    assert "rank 1/2" in done.stdout
    (run,) = (folder / "runs").iterdir()
    for name in ("metrics.jsonl", "report.html", "outcome.json", "final/weights.safetensors"):
        assert (run / name).is_file()
        assert name == "outcome.json" or f"{run.relative_to(folder)}/{name}" in done.stdout
    return run.name


@pytest.mark.lab
@pytest.mark.slow
def test_with_an_engine_it_trains_in_containers_and_leaves_none(tmp_path):
    done = demo(tmp_path)
    name = finished(done, tmp_path)
    assert "(local)" in done.stdout
    for listing in (("ps", "--all"), ("volume", "ls"), ("network", "ls")):
        assert labs.docker(*listing, "--quiet", "--filter", f"label=muster.run={name}") == ""


@pytest.mark.torch
@pytest.mark.slow
def test_without_an_engine_it_trains_as_processes_and_leaves_gpus_alone(tmp_path):
    pytest.importorskip("torch")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(
        "#!/bin/sh\necho GPU-11111111-2222-3333-4444-555555555555\n"
    )  # one GPU, as it prints it
    (tools / "nvidia-smi").chmod(0o755)
    done = demo(tmp_path, DOCKER_HOST=f"unix://{tmp_path}/none", PATH=f"{tools}:{os.environ['PATH']}")
    finished(done, tmp_path)
    assert "no containers: " in done.stdout
    assert "(process)" in done.stdout
