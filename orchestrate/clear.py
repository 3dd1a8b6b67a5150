"""Removes what a run left on one engine, found by its label and by nothing else.

The volume of the first node stays: it holds the run's checkpoints. Refuses nothing and reports what would not go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrate.engine import LABEL_NODE

if TYPE_CHECKING:
    from orchestrate.engine import Engine


def clear(engine: Engine, run: str) -> None:
    """Remove the containers and networks of a run, and its volumes unless the first node ran here."""
    keep = False
    for container in engine.containers(run):
        ran = bool(container.started_at) and not container.started_at.startswith("0001-")
        keep = keep or (ran and container.labels.get(LABEL_NODE) == "0")
        engine.remove(container.id)
    for network in engine.networks(run):
        engine.remove_network(network)
    if not keep:
        for volume in engine.volumes(run):
            engine.remove_volume(volume)
