"""Knows how the attempt to reach a host ended, as the collector wrote it down. Connects to nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from hostsetup.model import Known, Unknown

if TYPE_CHECKING:
    from hostsetup.model import Evidence, Probe

PROBES: tuple[Probe, ...] = ()  # the collector itself writes the reply `ssh`


class Outcome(StrEnum):
    """How connecting ended: `ok`, or the class of error. `brought`: nobody connected, the evidence was saved earlier."""

    OK = "ok"
    BROUGHT = "brought"
    DNS = "dns"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    AUTH = "auth"
    HOST_KEY_UNKNOWN = "host_key_unknown"
    HOST_KEY_CHANGED = "host_key_changed"
    PROXY = "proxy"
    CLOSED = "closed"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Access:
    """The outcome, what exactly was said, and what to do next. `local`: this very machine, reached without SSH."""

    outcome: Outcome
    detail: str = ""
    next: str = ""
    local: bool = False

    @property
    def failed(self) -> bool:
        """Whether an attempt was made and did not get through."""
        return self.outcome not in {Outcome.OK, Outcome.BROUGHT}


def parse_access(text: str) -> Access:
    """Read the collector's JSON object: `outcome`, `detail`, `next` and, for this machine itself, `local`."""
    try:
        data: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the text is wrong, not the caller
    detail, then = data.get("detail") or "", data.get("next") or ""
    return Access(Outcome(str(data.get("outcome"))), str(detail), str(then), local=data.get("local") is True)


def read(evidence: Evidence) -> Known[Access] | Unknown:
    """Return how the host was reached; evidence that holds answers but no `ssh` was brought from elsewhere."""
    if "ssh" not in evidence.replies and evidence.replies:
        return Known(Access(Outcome.BROUGHT))
    reply = evidence.answer("ssh")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_access(reply.text))
    except ValueError as error:
        return Unknown(f"the reply `ssh` is not readable: {error}")
