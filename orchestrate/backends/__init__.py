"""Where nodes run: hosts behind SSH, containers on this machine, plain processes; one small interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from orchestrate.outcome import Sighting
    from orchestrate.plan import NodePlan


class Backend(Protocol):
    """A place where the nodes of one plan run."""

    def claim(self) -> None:
        """Raise UsageError when a run of the plan's name is there already; makes nothing."""

    def place(self) -> None:
        """Create every node of the plan, or none; raise OperatorError with nothing left behind."""

    def start(self) -> None:
        """Start what was placed."""

    def look(self, node: NodePlan) -> Sighting:
        """Return how one node stands now. Never raises for a host that is out of reach."""

    def follow(self, node: NodePlan, after: str) -> Iterator[tuple[str, bytes]]:
        """Yield (time, line) of what a node prints after a time (empty = from the start), until it ends.

        Raises CannotTell when the host is lost; following anew after the last time leaves no gap and no repeat.
        """

    def take(self, path: str, folder: Path) -> bool:
        """Bring a file that the first node wrote below the run's out folder to the same path here; False without one."""

    def out_place(self) -> str:
        """Return, for people, where the run's out folder is; empty where there is none."""

    def force(self, node: NodePlan, pids: Sequence[int]) -> None:
        """End ranks of a node, by the process ids that its agent gave, without asking them again."""

    def stop(self, grace_s: int) -> None:
        """End every node: politely, then by force after `grace_s` seconds."""

    def remove(self) -> list[str]:
        """Remove what this backend made; return one sentence for each host where that could not be done."""

    def close(self) -> None:
        """Drop connections; the run is not touched."""
