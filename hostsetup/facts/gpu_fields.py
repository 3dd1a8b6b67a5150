"""Knows what nvidia-smi means by the words that it prints in place of a value. Takes none of them for zero, or for a fault.

`N/A` is no such thing on this GPU; an error is a value that nobody knows; a field that is absent is one that the driver
does not have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from hostsetup.facts.nvidia import absent
from hostsetup.facts.pci_tree import full_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostsetup.facts.pci_tree import Pci

_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,6})?", re.ASCII)
_TOKEN = re.compile(r"[\[\]]")


class Said(StrEnum):
    """What stands in a field: a value, or why there is none."""

    VALUE = "a value"
    UNSUPPORTED = "not supported by this GPU"
    DEPRECATED = "no longer shown by this driver"
    RESET = "the GPU requires a reset"
    ERROR = "an error"
    ABSENT = "a field that this driver does not have"


_WORDS = {
    "": Said.UNSUPPORTED,
    "n/a": Said.UNSUPPORTED,
    "not supported": Said.UNSUPPORTED,
    "requested functionality has been deprecated": Said.DEPRECATED,
    "gpu requires reset": Said.RESET,
    "unknown error": Said.ERROR,
    "gpu is lost": Said.ERROR,
    "insufficient permissions": Said.ERROR,
    "unknown": Said.ERROR,
    "err!": Said.ERROR,
}


def said(value: str | None) -> Said:
    """Return what a field says."""
    if value is None:
        return Said.ABSENT
    bare = _TOKEN.sub("", value).strip().lower()
    if bare in _WORDS:
        return _WORDS[bare]
    # any other text in brackets is nvidia-smi speaking of the query, not of the GPU
    return Said.ERROR if value.startswith("[") and value.endswith("]") else Said.VALUE


def number(value: str) -> float | None:
    """Return a number as printed without its unit; None: the text is no number."""
    return float(value) if _NUMBER.fullmatch(value) else None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU's fields by their name in `--query-gpu`, as printed. `address`: empty where it is not known."""

    index: int
    address: str
    fields: Mapping[str, str]

    @property
    def subject(self) -> str:
        """How reports name it."""
        return f"GPU {self.index} ({self.address})" if self.address else f"GPU {self.index}"

    @property
    def name(self) -> str:
        """The product's name; empty: not known."""
        return self.fields.get("name", "")

    def value(self, *names: str) -> str | None:
        """Return the first of several names of a field that holds a value."""
        return next((self.fields[name] for name in names if said(self.fields.get(name)) is Said.VALUE), None)

    def number(self, *names: str) -> float | None:
        """Return a field that holds a number."""
        value = self.value(*names)
        return None if value is None else number(value)

    def yes(self, *names: str) -> bool | None:
        """Return a field that holds Yes or No, which older drivers print as 1 or 0."""
        word = (self.value(*names) or "").lower()
        return {"yes": True, "1": True, "no": False, "0": False}.get(word)

    def line(self, *names: str) -> str:
        """Return fields for the evidence."""
        shown = "; ".join(f"{name}: {self.fields[name][:80]}" for name in names if name in self.fields)
        return f"{self.subject}: {shown}"


@dataclass(frozen=True, slots=True)
class Readings:
    """One field of every GPU. `gaps`: GPUs that did not tell a value although they have the field, and what they said."""

    values: tuple[tuple[Gpu, str], ...]
    gaps: tuple[tuple[Gpu, str], ...] = ()
    without: Said | None = None  # why no GPU at all has a value; None: some have, or there is a gap


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs that nvidia-smi shows. `source`: which probe told. `remarks`: what it said beside the table."""

    gpus: tuple[Gpu, ...]
    source: str
    remarks: tuple[str, ...] = field(default=())

    def read(self, *names: str) -> Readings:
        """Return a field of every GPU, under the first of its names that holds a value."""
        values: list[tuple[Gpu, str]] = []
        gaps: list[tuple[Gpu, str]] = []
        words: list[Said] = []
        for gpu in self.gpus:
            value = gpu.value(*names)
            if value is not None:
                values.append((gpu, value))
                continue
            shown = next((gpu.fields[name] for name in names if name in gpu.fields), None)
            word = said(shown)
            if word in {Said.ERROR, Said.RESET}:
                gaps.append((gpu, f"nvidia-smi says {shown!r} in place of {names[0]}"))
            else:
                words.append(word)
        return Readings(tuple(values), tuple(gaps), None if values or gaps else (words or [Said.ABSENT])[0])

    def at(self, address: str) -> Gpu | None:
        """Return the GPU at an address."""
        return next((gpu for gpu in self.gpus if gpu.address and gpu.address == address), None)

    def evidence(self, gpu: Gpu, *names: str) -> str:
        """Return a line of evidence."""
        return f"{self.source}: {gpu.line(*names)}"


def gpu(index: int, fields: Mapping[str, str]) -> Gpu:
    """Return a GPU with the address that its fields tell, in the form that the kernel uses."""
    try:
        address = full_address(fields.get("pci.bus_id", ""))
    except ValueError:
        address = ""
    return Gpu(index, address, fields)


def no_gpus(pci: Pci | None, gpus: object) -> str:
    """Return why a question about NVIDIA's GPUs does not apply to a host; empty: it does, or nobody knows."""
    return "" if pci is None or gpus is not None else absent(pci)


def lacks(gpus: Gpus, what: str, *names: str) -> str:
    """Return why no GPU of the host has a field; empty: some have, or could not tell."""
    without = gpus.read(*names).without
    return "" if without is None else f"{what}: {without}"
