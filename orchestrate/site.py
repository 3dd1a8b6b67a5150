"""A site's own expectations: a TOML file of values and of accepted findings. Knows no check by name, judges nothing."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hostsetup import checks
from orchestrate.errors import UsageError
from orchestrate.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hostsetup.expect import Value

SCHEMA = "muster.site/1"
LARGEST_BYTES = 1 << 20
DEEPEST = 20  # tables within tables; a name has four words at most
_LONGEST = 300  # characters of a file that an error repeats
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Site:
    """What a file expects by name, and which findings it accepts, by check, with the reason."""

    expect: Mapping[str, Value] = field(default_factory=dict)
    accept: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


def load(path: Path) -> Site:
    """Read a site's file; raise UsageError that names what in it is wrong."""
    try:
        with path.open("rb") as stream:
            text = stream.read(LARGEST_BYTES + 1)
        if len(text) > LARGEST_BYTES:
            raise _wrong(path, "the file is larger than 1 MiB")
        data = tomllib.loads(text.decode("utf-8-sig"))
    except OSError as error:
        raise _wrong(path, f"cannot read it: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _wrong(path, f"not TOML: {error}") from error
    if data.get("schema") != SCHEMA:
        raise _wrong(path, f'no line schema = "{SCHEMA}"', "write one with --save-baseline FILE and edit that")
    if strange := sorted(set(data) - {"schema", "from", "expect", "accept"}):
        raise _wrong(path, f"there is no {strange[0]!r} in such a file", "it may hold [expect] and [accept]")
    return Site(_expect(path, _table(path, data, "expect")), _accept(path, _table(path, data, "accept")), str(path))


def _table(path: Path, data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = data.get(name, {})
    if not isinstance(table, dict):
        raise _wrong(path, f"{name} is not a table", f"write [{name}] on a line of its own")
    told: dict[str, Any] = {}
    for key, value in _flat(table):
        if key in told:
            raise _wrong(path, f"{key} is said twice in [{name}]", "keep one of them")
        if isinstance(value, dict):
            raise _wrong(path, f"{key[:40]}... lies deeper than any name does")
        told[key] = value
    return told


def _flat(table: Mapping[str, Any], head: str = "", depth: int = 1) -> Iterable[tuple[str, Any]]:
    """Give a nested table's values by dotted names: `numa.nps = 1` and `"numa.nps" = 1` are the same."""
    for name, value in table.items():
        if isinstance(value, dict) and depth < DEEPEST:
            yield from _flat(value, f"{head}{name}.", depth + 1)
        else:
            yield f"{head}{name}", value


def _expect(path: Path, table: Mapping[str, Any]) -> dict[str, Value]:
    wants = checks.wants()
    told: dict[str, Value] = {}
    for name, value in table.items():
        if name not in wants:
            raise _wrong(path, f"nothing is called {name!r}", _close(name, wants))
        try:
            told[name] = wants[name].read(value)
        except ValueError as error:
            raise _wrong(path, f"{name}: {error}, got {_shown(value)}", wants[name].means) from error
    return told


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "a number that is too long to show"


def _accept(path: Path, table: Mapping[str, Any]) -> dict[str, str]:
    ids = [check.id for check in checks.catalogue()]
    for name, reason in table.items():
        if not any(fnmatchcase(one, name) for one in ids):
            raise _wrong(path, f"there is no check {name!r}", _close(name, ids))
        if not isinstance(reason, str) or not reason.strip():
            raise _wrong(path, f"{name} is accepted without a reason", 'write it as a text: "numa.nps" = "why"')
    return {name: reason.strip() for name, reason in table.items()}


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else "orchestrate explain ID tells what can be expected"


def _wrong(path: Path, what: str, next_step: str = "") -> UsageError:
    what = what if len(what) <= _LONGEST else f"{what[:_LONGEST]}..."
    return UsageError(what, where=str(path), next_step=next_step or "name a file that --save-baseline wrote")


def as_toml(expect: Mapping[str, Value], hosts: Iterable[str]) -> str:
    """Return the text of a site's file that expects these values, each after what it means."""
    wants = checks.wants()
    lines = [
        "# What this site expects of its hosts; edit it, then: orchestrate preflight hosts.txt --baseline THIS-FILE",
        f'schema = "{SCHEMA}"',
        f"from = {_toml(tuple(hosts))}",
        "",
        "[expect]",
    ]
    for name, value in sorted(expect.items()):
        lines += [f"# {wants[name].means}", f"{json.dumps(name)} = {_toml(value)}"]
    lines += ["", "[accept]", '# "numa.nps" = "the vendor ships it so"', ""]
    return "\n".join(lines)


def save(path: Path, expect: Mapping[str, Value], hosts: Iterable[str]) -> None:
    """Write a site's file, whole or not at all; raise UsageError when it cannot be written."""
    try:
        replace_file(path, as_toml(expect, hosts).encode())
    except OSError as error:
        raise _wrong(path, f"cannot write it: {error.strerror}", "choose another --save-baseline FILE") from error


def _text(value: str) -> str:
    """Return a text as TOML writes it; unlike JSON it knows no halves of a character."""
    return json.dumps(_HALF.sub("\ufffd", value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(value: Value) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return _text(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)
