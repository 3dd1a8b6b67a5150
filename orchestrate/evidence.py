"""Evidence on disk: DIR/HOST/PROBE.txt, .rc and .err. Judges nothing, and trusts no file to be small or regular."""

from __future__ import annotations

import errno
import json
import re
import stat
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from hostsetup import host as known_host
from hostsetup.model import Evidence, Reply
from orchestrate.errors import UsageError
from orchestrate.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LARGEST_REPLY_BYTES = 16 << 20
_PROBE = re.compile(r"([a-z0-9][a-z0-9-]{0,63})\.(txt|rc|err)")
_NOWHERE = frozenset({errno.ENOENT, errno.ELOOP})  # a link that leads nowhere: that reply is not there
_NEXT = "name a folder that --save wrote, or one with a folder HOST/ of PROBE.txt files"


@dataclass(frozen=True, slots=True)
class Visit:
    """How the audit of one host went: `state` is audited, unreachable or partial (some answers are missing)."""

    name: str
    state: str
    elapsed_s: float | None
    error: str | None


def save(evidence: Evidence, folder: Path) -> None:
    """Write one host's raw replies below the folder; raise UsageError when it cannot be written."""
    place = folder / _file_name(evidence.host)
    try:
        place.mkdir(parents=True, exist_ok=True)
        for old in place.iterdir():  # a probe that no longer answers must not look as if it had
            if _PROBE.fullmatch(old.name) and old.is_file():
                old.unlink()
        for name, reply in evidence.replies.items():
            replace_file(place / f"{name}.txt", reply.stdout)
            if reply.exit_code is not None:
                replace_file(place / f"{name}.rc", b"%d\n" % reply.exit_code)
            if reply.stderr:
                replace_file(place / f"{name}.err", reply.stderr)
    except OSError as error:
        raise UsageError(
            f"cannot save the evidence: {error.strerror}", where=str(place), next_step="choose another --save DIR"
        ) from error


def load(folder: Path) -> tuple[Evidence, ...]:
    """Return the evidence below a folder, by host; raise UsageError when there is none."""
    try:
        inside = sorted(folder.iterdir())
        every = [_read(path, _host(path.name)) for path in inside if path.is_dir() and not path.name.startswith(".")]
        every.append(_read(folder, _host(folder.resolve().name)))
    except OSError as error:
        where = str(error.filename or folder)
        raise UsageError(f"cannot read the evidence: {error.strerror}", where=where, next_step=_NEXT) from error
    found = [evidence for evidence in every if evidence.replies]
    if twice := [host for host, count in Counter(evidence.host for evidence in found).items() if count > 1]:
        raise UsageError(f"two folders hold evidence of {twice[0]!r}", where=str(folder), next_step="keep one of them")
    if not found:
        raise UsageError("the folder holds no evidence", where=str(folder), next_step=_NEXT)
    return in_order(found)


def in_order(evidence: Iterable[Evidence]) -> tuple[Evidence, ...]:
    """Return evidence by host, gpu2 before gpu10: what is saved and what is live are then judged alike."""
    return tuple(sorted(evidence, key=lambda one: [part.zfill(20) for part in re.split(r"(\d+)", one.host)]))


def visit(evidence: Evidence) -> Visit:
    """Return how the audit of a host went, from its evidence alone."""
    said: dict[str, Any] = {}
    if "ssh" in evidence.replies:
        try:
            read = json.loads(evidence.replies["ssh"].stdout)
        except (ValueError, RecursionError):
            read = None
        said = read if isinstance(read, dict) else {"outcome": "error", "detail": "the reply `ssh` is not readable"}
    elapsed = said.get("elapsed_s")
    elapsed_s = float(elapsed) if isinstance(elapsed, int | float) and 0 <= elapsed < 1e9 else None
    if said.get("outcome", "ok") != "ok":
        return Visit(evidence.host, "unreachable", elapsed_s, str(said.get("detail") or said["outcome"]))
    missing = [probe.name for probe in known_host.PROBES if probe.name not in evidence.replies]
    error = str(said.get("error") or "") or (f"{len(missing)} probes were not answered" if missing else None)
    return Visit(evidence.host, "partial" if error else "audited", elapsed_s, error)


def _file_name(host: str) -> str:
    """Return a name for a host's folder: the host itself where it can be; `unquote` turns it back."""
    name = quote(host, safe=":[]@")
    return name.replace(".", "%2E", 1) if name.startswith(".") else name


def _host(file_name: str) -> str:
    r"""Return the host of a folder; bytes of its name that are no UTF-8 are written as \xff."""
    return unquote(file_name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _read(folder: Path, host: str) -> Evidence:
    parts: dict[str, dict[str, bytes]] = {}
    for path in sorted(folder.iterdir()):
        found = _PROBE.fullmatch(path.name)
        if found is None:
            continue
        try:
            if stat.S_ISREG(path.stat().st_mode):
                with path.open("rb") as stream:
                    parts.setdefault(found[1], {})[found[2]] = stream.read(LARGEST_REPLY_BYTES)
        except OSError as error:
            if error.errno not in _NOWHERE:
                raise
    return Evidence(host, {name: _reply(part) for name, part in parts.items()})


def _reply(part: dict[str, bytes]) -> Reply:
    code = part.get("rc", b"").strip()
    return Reply(part.get("txt", b""), part.get("err", b""), int(code) if re.fullmatch(rb"\d{1,3}", code) else None)
