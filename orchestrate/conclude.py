"""Ends a run that is found on its hosts: stops what still runs, takes logs and metrics, gives a verdict, clears up.

Works from labels alone, so any machine that reaches the hosts can do it. Refuses to touch what carries another label.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from hostsetup import runlog
from orchestrate.backends.containers import lines
from orchestrate.clear import clear
from orchestrate.engine import LABEL_NODE
from orchestrate.errors import OperatorError
from orchestrate.outcome import Outcome, Sighting, derive
from orchestrate.plan import OUT_DIR, NodePlan, RunPlan
from orchestrate.record import record
from orchestrate.runs import NodeLog, RunFolder
from orchestrate.together import attempt
from orchestrate.watch import CHARACTERS_KEPT, LINES_KEPT
from trainer.contract import FINAL_WEIGHTS, METRICS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrate.engine import Container, Engine
    from orchestrate.find import Found

STOP_S = 60.0


def conclude(run: str, found: Sequence[Found], *, grace_s: int, warn: Callable[[str], None]) -> Outcome:
    """Stop and clear a run on the hosts that hold it; return what became of it."""
    folder = RunFolder(run)
    folder.open()  # before anything is touched: a record that cannot be kept is refused
    held = [(f.host.name, f.engine, c) for f in found if f.engine is not None for c in f.containers]
    nodes = sorted((_node(host, container) for host, _, container in held), key=lambda n: n.node)
    plan = folder.plan() if folder.exists else RunPlan(run, "found", tuple(nodes), "", 0)
    before = [_sighting(host, c) for host, _, c in held]
    for answer in attempt(held, lambda h: h[1].stop(h[2].id, grace_s), deadline_s=grace_s + STOP_S):
        if isinstance(answer, Exception):
            warn(f"not stopped: {answer}")
    logs = {}
    for _, engine, container in held:
        number = _number(container.labels.get(LABEL_NODE, ""))
        logs[number] = _collect(
            engine, container, NodeLog(folder, number, _node("", container).ranks, afresh=True), warn
        )
        _take(engine, container, folder, warn)
    failed = any(s.exit_code for s in before)
    outcome = derive(plan, before, logs, stopped=not failed and not all(s.over for s in before))
    record(folder, plan, outcome, warn)
    for host, cleared in zip(found, attempt(found, lambda f: _clear(f, run), deadline_s=STOP_S), strict=True):
        if isinstance(cleared, Exception):
            warn(f"not cleared: {host.host.name}: {cleared}")
    return outcome


def _clear(found: Found, run: str) -> None:
    if found.engine is not None:
        clear(found.engine, run)


def _collect(engine: Engine, container: Container, log: NodeLog, warn: Callable[[str], None]) -> runlog.RunLog:
    kept: deque[str] = deque(maxlen=LINES_KEPT)
    try:
        for _, line in lines(engine, container.id, follow=False):
            log.write(line)
            kept.append(line.decode("utf-8", "replace")[:CHARACTERS_KEPT])
    except OperatorError as error:
        warn(f"the log of {container.name} could not be fetched: {error.what}")
    finally:
        log.close()
    return runlog.parse(kept)


def _take(engine: Engine, container: Container, folder: RunFolder, warn: Callable[[str], None]) -> None:
    if container.labels.get(LABEL_NODE) != "0":
        return
    for path in (METRICS_FILE, FINAL_WEIGHTS):
        try:
            engine.copy_out(container.id, f"{OUT_DIR}/{path}", folder.path / path)
        except (OperatorError, OSError) as error:
            warn(f"{path} could not be fetched: {error}")


def _sighting(host: str, container: Container) -> Sighting:
    state = "exited" if container.exit_code is not None else "running"
    number = _number(container.labels.get(LABEL_NODE, ""))
    return Sighting(number, host, state, container.exit_code, container.oom_killed)


def _node(host: str, container: Container) -> NodePlan:
    first, _, last = container.labels.get("muster.ranks", "0-0").partition("-")
    start = _number(first)
    end = max(start, _number(last))
    return NodePlan(_number(container.labels.get(LABEL_NODE, "")), host, end - start + 1, start, "", "")


def _number(label: str) -> int:
    """Return a label's number; anybody can write labels, so what is none counts as 0."""
    return int(label) if re.fullmatch(r"[0-9]{1,6}", label) else 0
