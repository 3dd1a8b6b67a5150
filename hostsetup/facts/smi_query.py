"""Asks nvidia-smi for a narrow group of fields, and reads its CSV. Refuses to take a field that is not there for zero.

One field that a driver does not know ends the whole query, so a group that is refused is asked again field by field.
Fields that came with the same driver may stand as one, joined by commas: each question costs seconds on an idle host.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING

from hostsetup.model import Evidence, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TOOL = "nvidia-smi"
MAX_GPUS = 256
_FIELD = re.compile(r"[A-Za-z0-9_.]+(,[A-Za-z0-9_.]+)*")
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_ABSENT = frozenset({"", "n/a", "[n/a]", "not supported", "[not supported]", "[not found]", "unknown", "[unknown]"})


def query(name: str, fields: Sequence[str], *, timeout_s: int = 30) -> Probe:
    """Return the probe that asks for these fields of every GPU; its first column is always `index`."""
    if not all(map(_FIELD.fullmatch, fields)):
        raise ValueError("a field of nvidia-smi is letters, digits, dots and underscores; several are joined by commas")
    whole, single = ",".join(fields), " ".join(fields)
    command = f"""q() {{ nvidia-smi --query-gpu="index,$1" --format=csv,nounits; }}
q {whole}; rc=$?
[ "$rc" = 2 ] || exit "$rc"
for field in {single}; do q "$field"; done
exit 0"""
    return Probe(name, command, timeout_s=timeout_s, tool=TOOL)


def parse_query(text: str) -> dict[int, dict[str, str]]:
    """Read the tables of one or more queries: each GPU's fields by its index, as printed, without units.

    What nvidia-smi says instead of a table, and what it says of fields that it does not know, is left out.
    """
    gpus: dict[int, dict[str, str]] = {}
    header: list[str] = []
    for row in _rows(text):
        cells = [cell.strip() for cell in row]
        if cells[0] == "index":
            header = [_UNIT.sub("", cell) for cell in cells]
        elif header and len(cells) == len(header) and cells[0].isascii() and cells[0].isdigit() and len(cells[0]) < 4:
            gpus.setdefault(int(cells[0]), {}).update(zip(header[1:], cells[1:], strict=True))
        if len(gpus) > MAX_GPUS:
            raise ValueError("more GPUs than a host can hold")
    if not gpus:
        raise ValueError("no table of nvidia-smi --query-gpu")
    return gpus


def _rows(text: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader((line for line in text.splitlines() if line.strip()), skipinitialspace=True)
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from error


def ask(evidence: Evidence, probe: str) -> dict[int, dict[str, str]] | Unknown:
    """Return what a query answered, or in nvidia-smi's own words why it did not."""
    reply = evidence.answer(probe)
    if isinstance(reply, Unknown):
        return reply
    try:
        return parse_query(reply.text)
    except ValueError as error:
        said = (reply.text.strip() or reply.error_text.strip()).partition("\n")[0]
        return Unknown(f"`{probe}`: {said[:200] or error}")


def known(fields: Mapping[str, str], *names: str) -> str | None:
    """Return the first of several names of a field that says something; None: not there, or `N/A` in any spelling."""
    return next((fields[name] for name in names if fields.get(name, "").strip().lower() not in _ABSENT), None)


def number(fields: Mapping[str, str], *names: str) -> float | None:
    """Return a field that holds a number; None when it holds none."""
    value = known(fields, *names)
    return float(value) if value is not None and re.fullmatch(r"-?\d{1,15}(\.\d{1,6})?", value, re.ASCII) else None
