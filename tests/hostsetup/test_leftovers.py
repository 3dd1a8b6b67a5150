"""An engine that does not list its containers has not been asked, whatever else it answers."""

import os
import subprocess

import pytest

from hostsetup.facts import leftovers


@pytest.mark.parametrize(
    ("docker", "engine", "containers"),
    [
        ('[ "$1" = version ] || exit 1', False, 0),
        ('[ "$1" = version ] || echo "container 0123456789ab exited run1 muster-run1-0"', True, 1),
        (":", True, 0),
    ],
)
def test_only_an_engine_that_lists_its_containers_was_asked(tmp_path, docker, engine, containers):
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{docker}\n")
    (tmp_path / "docker").chmod(0o755)
    (probe,) = leftovers.PROBES
    told = subprocess.run(
        ["/bin/sh", "-c", probe.command],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    read = leftovers.parse_leftovers(told)
    assert (read.engine, len(read.containers)) == (engine, containers)
