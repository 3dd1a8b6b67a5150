"""Shows a launch while it happens: lines for people with a live one on a terminal, or events for programs.

Text from hosts is printed with control characters made visible; nothing here decides anything.
"""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from orchestrate.report.screen import one_line, reader_may_leave
from trainer.contract import FINAL_WEIGHTS, METRICS_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from orchestrate.outcome import Outcome
    from orchestrate.plan import NodePlan, RunPlan
    from trainer.contract import Progress

SAY_EVERY_S = 5.0


class View(Protocol):
    """What a launch tells while it goes."""

    def plan(self, plan: RunPlan) -> None:
        """Tell the plan, before anything starts."""

    def phase(self, name: str, text: str) -> None:
        """Name the step that begins."""

    def moved(self, where: str, done: int, total: int) -> None:
        """Tell how much of an image has reached a host, in bytes."""

    def line(self, node: NodePlan, rank: int | None, text: str) -> None:
        """Tell one line of a node's output."""

    def progress(self, progress: Progress) -> None:
        """Tell the newest training step."""

    def warn(self, text: str) -> None:
        """Tell what went less than well."""

    def outcome(self, outcome: Outcome, folder: Path, out_place: str) -> None:
        """Tell the end, and where everything is."""

    def close(self) -> None:
        """Leave the terminal as it was; the last call."""


def counted(number: int, word: str) -> str:
    """Return `1 rank`, `2 ranks`."""
    return f"{number} {word}{'s' * (number != 1)}"


def plan_lines(plan: RunPlan) -> list[str]:
    """Return the plan for people."""
    width = max(len(n.host) for n in plan.nodes)
    return [
        f"run {plan.run}: {counted(plan.world_size, 'rank')} on {counted(len(plan.nodes), 'node')} ({plan.backend})",
        f"  master   {plan.master_address}:{plan.master_port}",
        *([f"  image    {plan.image} ({plan.image_id[7:19]})"] if plan.image else []),
        f"  program  torchrun ... {shlex.join(plan.program)}",
        *([f"  preset   {plan.preset}"] if plan.preset != "default" else []),
        *(
            f"  node {n.node}   {n.host:<{width}}  ranks {n.first_rank}-{n.first_rank + n.nproc - 1}  {n.address}"
            f"{f' ({n.iface})' if n.iface else ''}{f'  {len(n.gpus)} GPUs' if n.gpus else ''}"
            for n in plan.nodes
        ),
    ]


def _finite(value: float) -> float | None:
    """Return the value, or None for what JSON has no number: a loss that is not finite."""
    return value if math.isfinite(value) else None


class Lines:
    """For people: progress lines, and on a terminal one live line at the bottom."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._live = (
            Live(console=self._console, auto_refresh=False, transient=True) if self._console.is_terminal else None
        )
        self._said_at = 0.0
        self._moved: dict[str, str] = {}
        if self._live is not None:
            self._live.start()

    def _print(self, text: str, style: str = "") -> None:
        with (
            contextlib.suppress(SystemExit),
            reader_may_leave(),
        ):  # rich's answer to a reader that left: the run goes on without one
            self._console.print(Text(text, style=style))

    def _set(self, status: str) -> None:
        if self._live is not None:
            with contextlib.suppress(SystemExit):
                self._live.update(Text(status, no_wrap=True, overflow="ellipsis"), refresh=True)

    def plan(self, plan: RunPlan) -> None:
        """Show the plan."""
        for text in plan_lines(plan):
            self._print(one_line(text))

    def phase(self, name: str, text: str) -> None:
        """Name the step that begins."""
        self._print(f"{name:<8} {one_line(text)}", "bold")

    def moved(self, where: str, done: int, total: int) -> None:
        """Show how much of an image has reached a host."""
        now = time.monotonic()
        self._moved[where] = f"{where} {min(99, done * 100 // total)} %" if total else f"{where} {done >> 20} MiB"
        if now - self._said_at < (SAY_EVERY_S if self._live is None else 0.2):
            return
        self._said_at = now
        size = f"about {total >> 20} MiB" if total else "new layers"
        text = f"image    {size}: {', '.join(self._moved.values())}"
        if self._live is None:
            self._print(text)
        else:
            self._set(text)

    def line(self, node: NodePlan, rank: int | None, text: str) -> None:
        """Show one line of a node's output."""
        who = f"{node.host}/agent" if rank is None else f"{node.host}/{rank}"
        self._print(f"[{who}] {one_line(text)}", "dim" if rank is None else "")

    def progress(self, progress: Progress) -> None:
        """Show the newest step on the live line."""
        done = min(20, 20 * progress.step // max(1, progress.steps))
        self._set(f"{'━' * done}{'·' * (20 - done)} {progress.line()}")

    def warn(self, text: str) -> None:
        """Show what went less than well."""
        self._print(f"warning  {one_line(text)}", "yellow")

    def outcome(self, outcome: Outcome, folder: Path, out_place: str) -> None:
        """Show the end: one block, the first failure in it, and where everything is."""
        self._set("")
        good = outcome.state == "finished"
        self._print(f"{outcome.state:<8} run {outcome.run}", "bold green" if good else "bold red")
        first = outcome.first
        if first is not None:
            who = "the node as a whole" if first.rank is None else f"rank {first.rank} (local rank {first.local_rank})"
            how = first.signal or (
                ("no answer" if first.finding == "ssh.reachable" else "gone")
                if first.exit_code is None
                else f"exit code {first.exit_code}"
            )
            self._print(f"  first    {who} on {first.node}: {how}  [{first.finding}]", "red")
            for text in first.last_words:
                self._print(f"           | {one_line(text)}")
            for finding in outcome.findings:
                if finding.remedy:
                    self._print(f"  next     {finding.remedy.text}")
        for name, what in (
            ("metrics", METRICS_FILE),
            ("weights", FINAL_WEIGHTS),
            ("report", "report.html"),
            ("logs", "logs"),
        ):
            if (folder / what).exists():
                self._print(f"  {name:<8} {folder / what}")
        if out_place not in {"", str(folder)}:
            self._print(f"  kept     {out_place}: what the run wrote, checkpoints included")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()


class Events:
    """For programs: one JSON object a line on standard output."""

    def __init__(self, run: str) -> None:
        self._run = run

    def _emit(self, event: str, **fields: Any) -> None:
        row: Mapping[str, Any] = {"event": event, "run": self._run, "time_s": round(time.time(), 3), **fields}
        with reader_may_leave():
            sys.stdout.write(json.dumps(row, allow_nan=False) + "\n")
            sys.stdout.flush()

    def plan(self, plan: RunPlan) -> None:
        """Tell the plan."""
        from orchestrate.plan import to_json

        self._emit("plan", plan=to_json(plan))

    def phase(self, name: str, text: str) -> None:
        """Name the step that begins."""
        self._emit("phase", name=name, text=text)

    def moved(self, where: str, done: int, total: int) -> None:
        """Tell how much of an image has reached a host."""
        self._emit("image", host=where, bytes=done, total=total)

    def line(self, node: NodePlan, rank: int | None, text: str) -> None:
        """Tell one line of a node's output."""
        self._emit("line", node=node.node, host=node.host, rank=rank, text=text)

    def progress(self, progress: Progress) -> None:
        """Tell the newest step."""
        self._emit(
            "progress",
            step=progress.step,
            steps=progress.steps,
            loss=_finite(progress.loss),
            samples_per_s=_finite(progress.samples_per_s),
        )

    def warn(self, text: str) -> None:
        """Tell what went less than well."""
        self._emit("warning", text=text)

    def outcome(self, outcome: Outcome, folder: Path, out_place: str) -> None:
        """Tell the end."""
        self._emit("outcome", outcome=outcome.as_json(), folder=str(folder), out=out_place)

    def close(self) -> None:
        """Nothing to put back."""
