"""The page of a run: one HTML file that needs no network, with the verdict, the curve and where every rank ran."""

from __future__ import annotations

import html
import json
import math
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrate.outcome import Outcome
    from orchestrate.plan import RunPlan

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #8884 }
svg { width: 100%; height: auto } pre { overflow-x: auto; background: #8881; padding: .8rem } .bad { color: #c33 } .good { color: #283 }
@media (prefers-color-scheme: dark) { .bad { color: #f77 } .good { color: #7d8 } }
"""
MOST_POINTS = 2000  # of the curve: more than a screen shows
MOST_STEPS = 10**15  # beyond what a float can place
_WIDTH, _HEIGHT, _MARGIN = 720, 240, 44


def page(plan: RunPlan, outcome: Outcome, metrics: bytes) -> str:
    """Return the page; `metrics` is metrics.jsonl as the trainer wrote it, lines that are no JSON are passed over."""
    e = html.escape
    first = outcome.first
    rows = "".join(
        f"<tr><td>{n.node}<td>{e(n.host)}<td>{n.first_rank}&ndash;{n.first_rank + n.nproc - 1}<td>{e(n.address)}<td>{len(n.gpus)}"
        for n in plan.nodes
    )
    told = outcome.error or {}
    cause = "".join(f"<p><b>{e(word)}</b> {e(text)}</p>" for word, text in told.items() if text)
    if first is not None:
        who = "the node as a whole" if first.rank is None else f"rank {first.rank} (local rank {first.local_rank})"
        how = first.signal or ("no answer" if first.exit_code is None else f"exit code {first.exit_code}")
        cause = (
            f"<h2>First failure</h2><p>{e(who)} on <b>{e(first.node)}</b>: {e(how)} <code>{e(first.finding)}</code></p>"
            f"<pre>{e(chr(10).join(first.last_words))}</pre>"
        )
    good = "good" if outcome.state == "finished" else "bad"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Run {e(plan.run)}: {e(outcome.state)}</title><style>{_STYLE}</style>"
        f'<h1>Run {e(plan.run)}: <span class="{good}">{e(outcome.state)}</span></h1>'
        f"<p><code>torchrun ... {e(shlex.join(plan.program))}</code><br>{plan.world_size} ranks on {len(plan.nodes)} nodes"
        f"{f', image <code>{e(plan.image)}</code> {e(plan.image_id[7:19])}' if plan.image else ', plain processes'}</p>"
        f"{cause}{_curve(losses(metrics))}"
        f"<h2>Nodes</h2><table><tr><th>node<th>host<th>ranks<th>address<th>GPUs{rows}</table></html>\n"
    )


def losses(metrics: bytes) -> list[tuple[int, float]]:
    """Return (step, loss) of every training row whose loss is a finite number."""
    found = []
    for line in metrics.decode("utf-8", "replace").splitlines():
        try:
            row = json.loads(line)
            point = (int(row["step"]), float(row["loss"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
        if abs(point[0]) < MOST_STEPS and math.isfinite(point[1]):
            found.append(point)
    return found


def _curve(points: Sequence[tuple[int, float]]) -> str:
    if len(points) < 2:
        return ""
    points = [*points[:: max(1, len(points) // MOST_POINTS)], points[-1]]
    steps, values = [p[0] for p in points], [p[1] for p in points]
    left, right, low, high = min(steps), max(steps), min(values), max(values)

    def place(step: int, value: float) -> str:
        x = _MARGIN + (step - left) / max(1, right - left) * (_WIDTH - 2 * _MARGIN)
        y = _HEIGHT - _MARGIN - (value - low) / max(1e-9, high - low) * (_HEIGHT - 2 * _MARGIN)
        return f"{x:.1f},{y:.1f}"

    line = " ".join(place(*p) for p in points)
    return (
        f'<h2>Loss</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Training loss from {values[0]:.3f} at step {left} to {values[-1]:.3f} at step {right}">'
        f'<polyline points="{line}" fill="none" stroke="#2a7" stroke-width="2"/>'
        f'<g font-size="12" fill="currentColor"><text x="2" y="{_MARGIN}">{high:.3f}</text>'
        f'<text x="2" y="{_HEIGHT - _MARGIN}">{low:.3f}</text><text x="{_MARGIN}" y="{_HEIGHT - 16}">step {left}</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 16}" text-anchor="end">step {right}</text></g></svg>'
    )
