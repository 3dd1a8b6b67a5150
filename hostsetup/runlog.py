"""Reads what torchrun and the ranks of one node printed into facts: who failed, how, and their last words.

Lines of a rank begin with `[rank3]:`, as the launcher asks torchrun to mark them; all others are the agent's own.
Refuses to rank causes: that is outcome's and the symptoms' part.
"""

from __future__ import annotations

import re
import signal
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WORDS_KEPT = 12  # last lines of a rank that a verdict shows

_RANK_LINE = re.compile(r"^\[rank(?P<rank>\d{1,6})\]:(?P<text>.*)$", re.DOTALL)
_FAILED = re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)")
_SUMMARY_RANK = re.compile(r"^\s*rank\s*: (?P<rank>\d+) \(local_rank: (?P<local>\d+)\)")
_SUMMARY_CODE = re.compile(r"^\s*exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)")
_SUMMARY_TIME = re.compile(r"^\s*time\s*: (?P<time>\S+)")
_PORT = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_TIMEOUT = re.compile(r"(DistNetworkError|DistStoreError|RendezvousTimeout).*|.*client socket has timed out.*")
# What a healthy rank prints when another one vanished.
_PEER = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|socket closed|remote process exited"
    r"|ncclRemoteError|peer .*(closed|disconnected)|failed to recv, got 0 bytes",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning|Fault))\b(:|$)")
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|torch\.OutOfMemoryError|torch\.cuda\.OutOfMemoryError")


@dataclass(frozen=True, slots=True)
class RankFailure:
    """One rank that its agent saw fail. `exit_code` is None for a signal; `order` counts within the node."""

    local_rank: int
    rank: int | None
    exit_code: int | None
    signal: str | None
    order: int
    time: str = ""


@dataclass(frozen=True, slots=True)
class RunLog:
    """What one node's log shows. `last_words` and `agent_words` hold a rank's and the agent's last lines, oldest first."""

    failures: tuple[RankFailure, ...] = ()
    last_words: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    agent_words: tuple[str, ...] = ()
    port_in_use: str = ""
    timed_out: str = ""
    exceptions: Mapping[int, str] = field(default_factory=dict)

    def peer_closed(self, rank: int) -> bool:
        """Tell whether a rank's last words only say that another one went away."""
        words = self.last_words.get(rank, ())
        return any(_PEER.search(line) for line in words)

    def out_of_memory(self, rank: int) -> bool:
        """Tell whether a rank's last words are CUDA's out of memory."""
        return any(_OUT_OF_MEMORY.search(line) for line in self.last_words.get(rank, ()))


def split_rank(line: str) -> tuple[int | None, str]:
    """Return (rank, text) of a line of a node's output; the rank is None for the agent's own lines."""
    found = _RANK_LINE.match(line)
    return (int(found["rank"]), found["text"]) if found else (None, line)


def signal_name(exit_code: int) -> str | None:
    """Return the signal that an exit code tells (negative as Python counts, 128 + n as a shell does), or None."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    try:
        return signal.Signals(number).name if number > 0 else None
    except ValueError:
        return None


def tells_failure(text: str) -> bool:
    """Tell whether a line of an agent's own says that one of its ranks failed."""
    return _FAILED.search(text) is not None


def parse(lines: Iterable[str]) -> RunLog:
    """Return what the lines of one node's log show. Understands any text; what it does not know says nothing."""
    words: dict[int, deque[str]] = {}
    agent: deque[str] = deque(maxlen=WORDS_KEPT)
    exceptions: dict[int, str] = {}
    failed: dict[int, RankFailure] = {}
    port = timed_out = time = ""
    summary: tuple[int, int] | None = None
    for raw in lines:
        rank, text = split_rank(raw.rstrip("\r\n"))
        port = port or (text.strip() if _PORT.search(text) else "")
        timed_out = timed_out or (text.strip() if _TIMEOUT.search(text) else "")
        if rank is not None:
            _remember(words, exceptions, rank, text)
            continue
        if text.strip():
            agent.append(text.rstrip())
        if found := _FAILED.search(text):
            local = int(found["local"])
            failed.setdefault(local, _failure(local, None, int(found["code"]), len(failed), ""))
        elif found := _SUMMARY_TIME.match(text):
            time = found["time"]
        elif found := _SUMMARY_RANK.match(text):
            summary = (int(found["rank"]), int(found["local"]))
        elif (found := _SUMMARY_CODE.match(text)) and summary is not None:
            number, local = summary
            order = failed[local].order if local in failed else len(failed)
            failed[local] = _failure(local, number, int(found["code"]), order, time)
            summary = None
    return RunLog(
        failures=tuple(sorted(failed.values(), key=lambda f: f.order)),
        last_words={rank: tuple(lines) for rank, lines in words.items()},
        agent_words=tuple(agent),
        port_in_use=port,
        timed_out=timed_out,
        exceptions=exceptions,
    )


def _remember(words: dict[int, deque[str]], exceptions: dict[int, str], rank: int, text: str) -> None:
    # torch marks the traceback of an uncaught exception with a rank of its own, inside the line
    inner = _RANK_LINE.match(text)
    text = (inner["text"] if inner else text).rstrip()
    if not text.strip():
        return
    words.setdefault(rank, deque(maxlen=WORDS_KEPT)).append(text)
    if _EXCEPTION.match(text.strip()):
        exceptions[rank] = text.strip()


def _failure(local: int, rank: int | None, code: int, order: int, time: str) -> RankFailure:
    name = signal_name(code) if code < 0 else None
    return RankFailure(local, rank, None if name else code, name, order, time)
