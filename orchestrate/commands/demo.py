"""`orchestrate demo`: the main job on an embedded default, with nothing to prepare. What `make demo` runs."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import click

from orchestrate.errors import OperatorError
from orchestrate.report.demo import heading, said

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrate.engine import Engine

LAB_BASE = "muster-lab-base"
STEPS = "40"


@click.command()
@click.option("--steps", default=STEPS, show_default=True, help="training steps")
def demo(steps: str) -> int:
    """Audit this machine, then train a small language model on two nodes of it.

    The nodes are containers where a Docker Engine answers and an image can be built, else plain processes; it says which.
    """
    from orchestrate import runs
    from orchestrate.cli import run

    heading("1. Audit this machine: orchestrate preflight local")
    run(["preflight", "local"])
    where = _where()
    heading(f"2. Train on two nodes of it: orchestrate launch --on {where} --nodes 2 -- -m trainer --steps {steps}")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # it shows the machinery on any machine, and trains on CPUs
    name = f"demo-{runs.new_name()}"
    asked = ["launch", "--on", where, "--name", name, "--nodes", "2", "--nproc-per-node", "1"]
    code = run([*asked, "--", "-m", "trainer", "--steps", steps])
    if where == "local":
        _forget(name)
    if code == 0:
        heading("3. Next: put your hosts into hosts.txt, one a line, and run `orchestrate preflight hosts.txt`")
    return code


def _forget(name: str) -> None:
    """Remove the volume of the demonstration: its weights and metrics are in runs/ by now."""
    from orchestrate import engine

    here = engine.local()
    for volume in here.volumes(name):
        here.remove_volume(volume)
        said(f"  removed  volume {volume}: the demonstration needs it no more")
    here.close()


def _where() -> str:
    """Return `local` when an image of this checkout can be had here, else `process`, and say why."""
    from orchestrate import build, engine

    try:
        here = engine.local(timeout_s=60)
    except OperatorError as error:
        said(f"no containers: {error.what}")
        return "process"
    try:
        root = build.checkout()
        base = _base(here, root)
        if base is None:
            said("no containers: no base image is here, and no registry is in reach")
            return "process"
        from orchestrate.cli import run

        heading(f"   The image: orchestrate build --variant cpu --base {base}  (the first time takes a minute or two)")
        if run(["build", "--variant", "cpu", "--base", base]) == 0:
            return "local"
        said("no containers: the image could not be built; the lines above say why")
    finally:
        here.close()
    return "process"


def _base(here: Engine, root: Path) -> str | None:
    """Return a base image that is here, that a registry gives, or that can be made from this machine's packages."""
    from orchestrate import build

    wanted = build.base_of(root, "cpu")
    for ref in (wanted, LAB_BASE):
        if here.image_id(ref):
            return ref
    said(f"fetching {wanted}")
    try:
        here.pull_image(wanted)
    except OperatorError as error:
        said(f"not fetched: {error.what}")
    else:
        return wanted
    script = root / "tests" / "lab" / "base.sh"
    if os.geteuid() == 0 and script.is_file():
        made = subprocess.run([str(script), "bookworm", LAB_BASE], check=False, stdout=2)
        if made.returncode == 0:
            return LAB_BASE
    return None
