"""Reads a target (hosts.txt, a comma list, `local`) into hosts; every error names the line. Opens no connection."""

from __future__ import annotations

import difflib
import ipaddress
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from orchestrate.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEFAULT_FILE = "hosts.txt"
MOST_HOSTS = 100_000  # a typing error (gpu[1-10000000]) must not eat the memory
LARGEST_FILE_BYTES = 16 << 20

_FORMS = (
    "give a hosts file (one host a line), a comma list (gpu01,gpu[02-08]) or `local`; "
    f"without any, ./{DEFAULT_FILE} is read"
)
_KEYS = ("slots", "addr", "iface", "spare", "max_slots", "max-slots")
_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_-]{0,63})*")  # as long as DNS allows
_PATTERN = re.compile(r"[A-Za-z0-9_\[][\]\[A-Za-z0-9._,/-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+\\@-]*\$?")
_IFACE = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
_CONTROL = re.compile(r"[^\t\x20-\x7e\x80-\U0010ffff]|[\x80-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a target.

    `name` identifies it in reports and is unique; `destination` is what SSH is asked for (an alias, name or numeric
    address, without user and port). `slots`: ranks to run there, None = its GPUs, or 1 without. `address`: what peers use
    for training, None = the launcher finds out. `local`: this machine, reached without SSH.
    """

    name: str
    destination: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    address: str | None = None
    iface: str | None = None
    spare: bool = False
    local: bool = False
    line: int | None = None


def read_target(target: str | Path | None = None) -> tuple[Host, ...]:
    """Return the hosts that a target names, in order; None means ./hosts.txt.

    Raise UsageError, with file and line, for anything that is not a clean list of distinct hosts.
    """
    if target is None:
        if not Path(DEFAULT_FILE).is_file():
            raise UsageError(f"no hosts were named, and there is no ./{DEFAULT_FILE}", next_step=_FORMS)
        target = Path(DEFAULT_FILE)
    path = Path(target)
    if isinstance(target, str) and not _is_path(target, path):
        place = _Place(f"TARGET {target!r}")
        hosts = [host for word in _split(target, place) for host in _parse(word, place)]
        return _unique(hosts, place)
    return parse_hosts(_read(path), str(target))


def parse_hosts(text: str, file: str = DEFAULT_FILE) -> tuple[Host, ...]:
    """Return the hosts of a hosts file's text; `file` names it in errors. Raise UsageError as `read_target` does."""
    hosts: list[Host] = []
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")), start=1):
        place = _Place(file, number)
        content = re.split(r"(?:^|\s)#", line, maxsplit=1)[0]
        if bad := _CONTROL.search(content):
            place.refuse(f"a control character ({bad.group()!a}) stands in the line", "type the line again by hand")
        if content.strip():
            hosts += _parse(content, place)
        if len(hosts) > MOST_HOSTS:
            place.refuse(f"more than {MOST_HOSTS} hosts", "split the file")
    return _unique(hosts, _Place(file))


def format_hosts(names: Iterable[str]) -> str:
    """Fold names for people: gpu01 gpu02 gpu03 gpu07 -> gpu[01-03,07]; names that do not fold are listed as they are."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    every = sorted(set(names))
    plain = dict.fromkeys(name for name in every if _NAME.fullmatch(name) and not _is_address(name))
    folded = str(NodeSet.fromlist(plain, resolver=RESOLVER_NOGROUP)) if plain else ""
    return ",".join(filter(None, [folded, *(name for name in every if name not in plain)]))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a word stands, for errors."""

    file: str
    line: int | None = None

    def refuse(self, what: str, next_step: str) -> NoReturn:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        raise UsageError(what, where=where, next_step=next_step)


def _is_path(target: str, path: Path) -> bool:
    try:
        return "/" in target or target.endswith(".txt") or (path.exists() and not path.is_dir())
    except (OSError, ValueError):
        return False


def _read(path: Path) -> str:
    try:
        if path.is_fifo() and not str(path).startswith(("/dev/fd/", "/proc/")):  # a shell's <(...) is fine
            raise UsageError("the hosts file is a named pipe", where=str(path), next_step=_FORMS)
        with path.open("rb") as stream:
            raw = stream.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the hosts file: {error.strerror}", where=str(path), next_step=_FORMS) from error
    if len(raw) > LARGEST_FILE_BYTES:
        raise UsageError("the hosts file is larger than 16 MiB", where=str(path), next_step=_FORMS)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError("not UTF-8 text", where=f"{path}:{line}", next_step="save the file as UTF-8") from error


def _split(target: str, place: _Place) -> Iterator[str]:
    if bad := _CONTROL.search(target):
        place.refuse(f"a control character ({bad.group()!a}) stands in the list", _FORMS)
    for word in re.split(r",(?![^\[]*\])", target):
        if not word.strip() or len(word.split()) != 1:
            place.refuse("an empty word, or one with blanks, stands in the list of hosts", _FORMS)
        yield word.strip()


def _parse(content: str, place: _Place) -> list[Host]:
    word, *options = content.split()
    if word.startswith("-"):
        place.refuse(
            f"{word!r} looks like an option", "start the line with a host; options of ssh belong in its config"
        )
    user, at, rest = word.rpartition("@")
    if at and not _USER.fullmatch(user):
        place.refuse(f"{user!r} is no user name", "write user@host:port")
    names, port = _destinations(rest, place)
    fields = _options(options, place)
    if len(names) > 1 and fields.get("address"):
        place.refuse(f"addr= names one address, but the line names {len(names)} hosts", "write one line for each host")
    local = word == "local"
    return [
        Host(name, name, user=user or None, port=port, local=local, line=place.line, **fields)  # type: ignore[arg-type]
        for name in names
    ]


def _destinations(word: str, place: _Place) -> tuple[list[str], int | None]:
    """Return the hosts that `host`, `host:port`, `[v6]:port`, a bare IPv6 address or a range names, and the port."""
    if _is_address(word):
        return [word], None
    if (found := re.fullmatch(r"\[([^\]]+)\](?::(.*))?", word)) and _is_address(found[1]):
        return [found[1]], _port(found[2], place)
    name, colon, port = word.partition(":")
    if name.startswith("-"):
        place.refuse(f"{name!r} looks like an option", "give the name or address of a host")
    if "[" not in name and "]" not in name:
        if not _NAME.fullmatch(name):
            place.refuse(f"{name!r} is no host name", "use letters, digits, '.', '-' and '_', or an address")
        return [name], _port(port if colon else None, place)
    return _expand(name, place), _port(port if colon else None, place)


def _expand(pattern: str, place: _Place) -> list[str]:
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetParseError

    hint = "write a range as gpu[01-08] or gpu[01-03,07]"
    if not _PATTERN.fullmatch(pattern) or re.search(r"\d{10}", pattern):
        place.refuse(f"{pattern!r} is no range of host names", hint)
    count = 1
    for group in re.findall(r"\[([^\]]*)\]", pattern):
        spans = re.findall(r"(\d+)-(\d+)", group)
        count *= sum(max(int(last) - int(first), 0) for first, last in spans) + group.count(",") + 1
    if count > MOST_HOSTS:
        place.refuse(f"{pattern!r} names {count} hosts, more than {MOST_HOSTS}", hint)
    try:
        names = [str(name) for name in NodeSet(pattern, resolver=RESOLVER_NOGROUP)]
    except NodeSetParseError as error:
        place.refuse(f"malformed range {pattern!r}: {error}", hint)
    if not names or not all(_NAME.fullmatch(name) for name in names):
        place.refuse(f"{pattern!r} names no host", hint)
    return names


def _options(words: list[str], place: _Place) -> dict[str, object]:
    fields: dict[str, object] = {}
    seen: set[str] = set()
    for word in words:
        key, equals, value = word.partition("=")
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "known are slots=N addr=ADDRESS iface=NAME spare"
            place.refuse(f"unknown word {word!r} after the host", hint)
        if key in seen:
            place.refuse(f"{key!r} stands twice in the line", "keep one of them")
        seen.add(key)
        match key:
            case "spare" if not equals:
                fields["spare"] = True
            case "slots":
                fields["slots"] = _number(word, value, 4096, place)
            case "addr" if _is_address(value):
                fields["address"] = value
            case "iface" if _IFACE.fullmatch(value):
                fields["iface"] = value
            case "max_slots" | "max-slots":
                _number(word, value, 4096, place)  # MPI's upper bound; `slots` is what we run
            case _:
                place.refuse(f"{word!r} has no usable value", "write slots=8 addr=192.168.50.9 iface=ens1f0 spare")
    return fields


def _port(text: str | None, place: _Place) -> int | None:
    return None if text is None else _number(f"port {text!r}", text, 65535, place)


def _number(word: str, text: str, most: int, place: _Place) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        place.refuse(f"{word} is not a number from 1 to {most}", "correct the number, or leave it out")
    return int(text)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return not re.search(r"%.*[^A-Za-z0-9_.-]", text)


def _unique(hosts: list[Host], place: _Place) -> tuple[Host, ...]:
    """Refuse an empty list and duplicates; hosts that differ only in their port get it into their name."""
    if not hosts:
        place.refuse("names no host", _FORMS)
    first: dict[tuple[str, int], Host] = {}
    ports: dict[str, int] = {}
    for host in hosts:
        key = (host.destination, host.port or 22)
        if key in first:
            earlier = first[key].line
            again = f"{host.destination!r} is named twice" + (f", first in line {earlier}" if earlier else "")
            _Place(place.file, host.line).refuse(again, "keep one of them; slots=N runs several ranks on a host")
        first[key] = host
        ports[host.destination] = ports.get(host.destination, 0) + 1
    return tuple(replace(host, name=_with_port(host)) if ports[host.destination] > 1 else host for host in hosts)


def _with_port(host: Host) -> str:
    name = f"[{host.destination}]" if ":" in host.destination else host.destination
    return f"{name}:{host.port or 22}"
