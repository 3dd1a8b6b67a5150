"""Judges a host's key by the text of known_hosts files, as ssh(1) does. Accepts no key by itself and writes no file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Verdict(Enum):
    """What the known hosts say of a key."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a known_hosts file. `place` is FILE:LINE; `mark` is empty, `@revoked` or `@cert-authority`."""

    names: str
    kind: str
    key: bytes
    place: str
    mark: str = ""

    def matches(self, name: str) -> bool:
        """Whether the line speaks of this host: hashed, or comma-separated patterns with `*`, `?` and `!`."""
        if self.names.startswith("|1|"):
            return _hash_matches(self.names, name)
        patterns = self.names.lower().split(",")
        if any(pattern.startswith("!") and _glob(pattern[1:], name) for pattern in patterns):
            return False
        return any(_glob(pattern, name) for pattern in patterns)


def parse_known_hosts(text: str, file: str) -> tuple[Entry, ...]:
    """Return the entries of a known_hosts file; lines that ssh would skip are skipped."""
    entries = []
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        mark = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
        except ValueError:
            continue
        entries.append(Entry(words[0], words[1], key, f"{file}:{number}", mark))
    return tuple(entries)


def lookup_name(hostname: str, port: int) -> str:
    """Return the name under which ssh files a host's key: `host`, or `[host]:port` when the port is not 22."""
    return hostname.lower() if port == 22 else f"[{hostname.lower()}]:{port}"


def known(entries: Iterable[Entry], name: str) -> tuple[Entry, ...]:
    """Return the entries that speak of a host; `[host]:port` falls back to `host`, as in ssh."""
    entries = tuple(entries)
    found = tuple(entry for entry in entries if entry.matches(name))
    plain = re.fullmatch(r"\[(.+)\]:\d+", name)
    if found or plain is None:
        return found
    return tuple(entry for entry in entries if entry.matches(plain[1]))


def judge(entries: Iterable[Entry], key: bytes) -> tuple[Verdict, str]:
    """Return what the entries of one host say of the key that it shows, and the place that says so."""
    entries = tuple(entries)
    for entry in entries:
        if entry.mark == "@revoked" and entry.key == key:
            return Verdict.REVOKED, entry.place
    plain = [entry for entry in entries if not entry.mark]
    for entry in plain:
        if entry.key == key:
            return Verdict.KNOWN, entry.place
    return (Verdict.CHANGED, plain[0].place) if plain else (Verdict.UNKNOWN, "")


def fingerprint(key: bytes) -> str:
    """Return a key's fingerprint as ssh-keygen -l prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _hash_matches(names: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in names.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)


def _glob(pattern: str, name: str) -> bool:
    expression = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.fullmatch(expression, name, re.DOTALL) is not None
