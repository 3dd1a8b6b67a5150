"""The headings of the demonstration."""

from __future__ import annotations

import sys

from orchestrate.report.screen import colours, one_line


def heading(text: str) -> None:
    """Print what comes next."""
    mark, plain = ("\x1b[1m", "\x1b[0m") if colours() else ("", "")
    print(f"\n{mark}{one_line(text)}{plain}", flush=True)


def said(text: str) -> None:
    """Print one sentence."""
    print(one_line(text), file=sys.stdout, flush=True)
