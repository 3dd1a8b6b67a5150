"""Knows all that the evidence says of one host, one slot a subsystem. Fills no gap by a guess.

A subsystem is a file of `facts/` with a function `read`; its name is the slot's. There is no list to keep.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

from hostsetup import facts as _folder
from hostsetup.model import Evidence, Known, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import ModuleType

    from hostsetup.model import Probe


@cache
def subsystems() -> Mapping[str, ModuleType]:
    """Return the modules of `facts/` that read a subsystem, by the name of their slot."""
    names = sorted(info.name for info in pkgutil.iter_modules(_folder.__path__))
    modules = {name: importlib.import_module(f"{_folder.__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "read")}


def _probes() -> tuple[Probe, ...]:
    every = [probe for module in subsystems().values() for probe in getattr(module, "PROBES", ())]
    # the quick ones first: a stream that is cut loses the slow ones
    return tuple(sorted(every, key=lambda probe: (bool(probe.tool), probe.timeout_s)))


PROBES = _probes()


@cache
def _needs(module: ModuleType) -> tuple[tuple[str, bool], ...]:
    """Return what a reader asks for: the evidence, or other slots; True: it can do without."""
    parameters = inspect.signature(module.read).parameters.values()
    return tuple((one.name, one.default is not inspect.Parameter.empty) for one in parameters)


class HostFacts:
    """What is known of one host; a check names the slots it needs. Each slot is read once, when it is asked for."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._slots: dict[str, Known[Any] | Unknown] = {}
        self._dropped = False

    def __getattr__(self, name: str) -> Known[Any] | Unknown:
        """Return a subsystem's slot; raise AttributeError when there is no such subsystem."""
        if name.startswith("_") or name not in subsystems():
            raise AttributeError(name)
        slots: dict[str, Known[Any] | Unknown] = self.__dict__["_slots"]
        if name not in slots:
            if self.__dict__["_dropped"]:
                raise LookupError(f"{name} was not kept")
            slots[name] = self._read(name)
        return slots[name]

    def keep(self, names: Iterable[str]) -> None:
        """Read these slots and drop the evidence and all others: of a thousand hosts not all of it can be held."""
        kept = {name: getattr(self, name) for name in names}
        self._evidence, self._slots, self._dropped = Evidence(self._evidence.host), kept, True

    def _read(self, name: str) -> Known[Any] | Unknown:
        module = subsystems()[name]
        given: dict[str, Any] = {}
        for need, optional in _needs(module):
            slot: Known[Any] | Unknown = Known(self._evidence) if need == "evidence" else getattr(self, need)
            if isinstance(slot, Known):
                given[need] = slot.value
            elif not optional:
                return slot
        try:
            told: Known[Any] | Unknown = module.read(**given)
        except Exception as error:  # noqa: BLE001 - hostile data that a reader trips over must not end the audit
            return Unknown(f"the reader of `{name}` itself failed: {type(error).__name__}: {error}"[:300])
        return told


def read(evidence: Evidence) -> HostFacts:
    """Return what the evidence says; what it does not show is `Unknown` with the reason."""
    return HostFacts(evidence)


def flat(facts: HostFacts) -> dict[str, Any]:
    """Return the facts for JSON, by subsystem; a subsystem that is not known, or tells nothing, is absent."""
    told: dict[str, Any] = {}
    for name, module in subsystems().items():
        tell = getattr(module, "tell", None)
        if tell is not None and isinstance(slot := getattr(facts, name), Known):
            told[getattr(module, "TELLS", name)] = tell(slot.value)
    told = {name: values for name, values in told.items() if values}
    if isinstance(facts.pci, Known) and isinstance(facts.acs, Unknown):
        told["acs"] = {"readable": False}
    return told
