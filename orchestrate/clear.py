"""Removes what a run left on one engine, found by its label and by nothing else.

The volume of the first node stays: it holds the run's checkpoints. Refuses nothing and reports what would not go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrate.engine import LABEL_NODE

if TYPE_CHECKING:
    from orchestrate.engine import Engine


def clear(engine: Engine, run: str) -> None:
    """Remove the containers and networks of a run, and the volumes of its nodes but the first."""
    for container in engine.containers(run):
        engine.remove(container.id)
    for network in engine.networks(run):
        engine.remove_network(network)
    for volume, labels in engine.volumes(run).items():
        if (labels.get(LABEL_NODE) or "0") != "0":
            engine.remove_volume(volume)
