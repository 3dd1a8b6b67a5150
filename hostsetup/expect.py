"""Knows what a site expects of its hosts, in three layers: built in, by platform, from a site's file. Judges nothing.

A check declares what may be expected of it (`EXPECTS`, a name below its own id to a Want); the layers above may say
something else; a site's file may also say what a good host had (`--save-baseline`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Value: TypeAlias = bool | int | float | str | tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Want:
    """One thing that can be expected: its type, what it means, and what is expected unless somebody says otherwise.

    `kind` is bool, int, float or str; `many`: a tuple of these. `default` None: nothing is expected.
    """

    kind: type
    means: str
    default: Value | None = None
    many: bool = False

    def read(self, value: object) -> Value:
        """Return a value of a file as this kind; raise ValueError when it is of another."""
        if self.many:
            items = value if isinstance(value, list | tuple) else [value]
            if not items or not all(_is(item, self.kind) for item in items):
                raise ValueError(f"wanted a list of {_NAMES[self.kind]}")
            return tuple(_as(item, self.kind) for item in items)
        if not _is(value, self.kind):
            raise ValueError(f"wanted {_NAMES[self.kind]}")
        told: Value = _as(value, self.kind)
        return told


_BEYOND = 1 << 63
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _is(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _as(value: Any, kind: type) -> Any:
    """Return a value as this kind; raise ValueError on a number that nothing compares with: not finite, or too large."""
    if isinstance(value, int | float) and not abs(value) < _BEYOND:
        raise ValueError(f"wanted {_NAMES[kind]} below 2^63")
    return kind(value)


@dataclass(frozen=True, slots=True)
class Expect:
    """What is expected of one host: values by name, and which layer said so (`built-in`, a profile, a file)."""

    values: Mapping[str, Value] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Value | None:
        """Return what is expected, or None."""
        return self.values.get(name)

    def whole(self, name: str) -> int | None:
        """Return an expected whole number."""
        value = self.values.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, name: str) -> float | None:
        """Return an expected number."""
        value = self.values.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def text(self, name: str) -> str | None:
        """Return an expected text."""
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def several(self, name: str) -> tuple[int, ...] | tuple[str, ...]:
        """Return the values of which any is right; empty: nothing is expected."""
        value = self.values.get(name)
        return value if isinstance(value, tuple) else ()

    def origin(self, name: str) -> str:
        """Return who expects it, for messages."""
        return self.origins.get(name, "built-in")

    def over(self, values: Mapping[str, Value], origin: str) -> Expect:
        """Return these expectations with another layer on top."""
        return replace(
            self, values={**self.values, **values}, origins={**self.origins, **dict.fromkeys(values, origin)}
        )
