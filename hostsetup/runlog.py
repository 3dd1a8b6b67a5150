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
CHARACTERS_READ = 2000  # of a line: bounds what a line without end can cost
RANKS_READ = 4096  # of one node: bounds what a log that names ranks at random can cost

_RANK_LINE = re.compile(r"^\[rank(?P<rank>[0-9]{1,6})\]:(?P<text>.*)$", re.DOTALL)
_FAILED = re.compile(
    r"failed \(exitcode: (?P<code>-?[0-9]{1,9})\) local_rank: (?P<local>[0-9]{1,9}) \(pid: (?P<pid>[0-9]{1,9})\)"
)
_CLOSING = re.compile(r"Sending process (?P<pid>[0-9]{1,9}) closing signal SIG")
_AGENT_SIGNAL = re.compile(r"Received (?P<number>[0-9]{1,3}) death signal")
_SUMMARY_RANK = re.compile(r"^\s*rank\s*: (?P<rank>[0-9]{1,9}) \(local_rank: (?P<local>[0-9]{1,9})\)")
_SUMMARY_CODE = re.compile(r"^\s*exitcode\s*: (?P<code>-?[0-9]{1,9}) \(pid: (?P<pid>[0-9]{1,9})\)")
_SUMMARY_TIME = re.compile(r"^\s*time\s*: (?P<time>\S+)")
_FRAME = re.compile(r"^\s*frame #[0-9]+: ")  # dozens of them follow torch's own message and would push it out
_PORT = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_TIMEOUT = re.compile(r"DistNetworkError|DistStoreError|RendezvousTimeout|client socket has timed out")
# What a healthy rank prints when another one vanished.
_PEER = re.compile(
    r"connection closed by peer|connection reset by peer|broken pipe|socket closed|remote process exited"
    r"|ncclRemoteError|peer .{0,200}(closed|disconnected)|failed to recv, got 0 bytes",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning|Fault))\b(:|$)")
_OUT_OF_MEMORY = re.compile(r"CUDA out of memory|torch\.OutOfMemoryError|torch\.cuda\.OutOfMemoryError")


@dataclass(frozen=True, slots=True)
class RankFailure:
    """One rank that its agent saw fail. `exit_code` is None for a signal; `order` counts within the node.

    `closed`: the agent itself was ending the rank, because another one had failed or the agent was told to stop.
    """

    local_rank: int
    rank: int | None
    exit_code: int | None
    signal: str | None
    order: int
    time: str = ""
    closed: bool = False


@dataclass(frozen=True, slots=True)
class RunLog:
    """What one node's log shows. `last_words` and `agent_words` hold a rank's and the agent's last lines, oldest first."""

    failures: tuple[RankFailure, ...] = ()
    last_words: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    agent_words: tuple[str, ...] = ()
    agent_signal: str | None = None  # that ended the agent, and through it its ranks
    port_in_use: str = ""
    timed_out: str = ""
    exceptions: Mapping[int, str] = field(default_factory=dict)

    def peer_closed(self, rank: int) -> bool:
        """Tell whether a rank's last words only say that another one went away."""
        words = self.last_words.get(rank, ())
        return any(_PEER.search(line) for line in words)

    def port_taken(self, rank: int) -> bool:
        """Tell whether a rank's last words say that a port was in use."""
        return any(_PORT.search(line) for line in self.last_words.get(rank, ()))

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


class ExitBarrier:
    """Knows the error that an agent logs when the first node, which holds the store, left a moment before it: harmless.

    One for each node; torch gives all lines of one record the same head.
    """

    def __init__(self) -> None:
        self._head = ""

    def hides(self, text: str) -> bool:
        """Tell whether the next line of an agent belongs to that record."""
        head = text[: text.find("]") + 1]
        if "Error waiting on exit barrier" in text:
            self._head = head
        return bool(self._head) and head == self._head


def tells_failure(text: str) -> bool:
    """Tell whether a line of an agent's own says that one of its ranks failed, or that it ends the others for that."""
    text = text[:CHARACTERS_READ]
    return _FAILED.search(text) is not None or _CLOSING.search(text) is not None


def closing_pid(text: str) -> int | None:
    """Return the process that a line of an agent's own says is asked to end, or None."""
    found = _CLOSING.search(text[:CHARACTERS_READ])
    return int(found["pid"]) if found else None


def parse(lines: Iterable[str]) -> RunLog:
    """Return what the lines of one node's log show. Understands any text; what it does not know says nothing."""
    words: dict[int, deque[str]] = {}
    exceptions: dict[int, str] = {}
    agent = _Agent()
    for raw in lines:
        rank, text = split_rank(raw.rstrip("\r\n"))
        text = text.rpartition("\r")[2][:CHARACTERS_READ]  # what a progress bar showed last
        if rank is None:
            agent.read(text)
        elif rank in words or len(words) < RANKS_READ:
            _remember(words, exceptions, rank, text)
    return RunLog(
        failures=tuple(sorted(agent.failed.values(), key=lambda f: f.order)),
        last_words={rank: tuple(lines) for rank, lines in words.items()},
        agent_words=tuple(agent.words),
        agent_signal=agent.signal,
        port_in_use=agent.port_in_use,
        timed_out=agent.timed_out,
        exceptions=exceptions,
    )


class _Agent:
    """What the agent's own lines have told so far."""

    def __init__(self) -> None:
        self.words: deque[str] = deque(maxlen=WORDS_KEPT)
        self.failed: dict[int, RankFailure] = {}
        self.closing: set[int] = set()
        self.signal: str | None = None
        self.port_in_use = ""
        self.timed_out = ""
        self._time = ""
        self._summary: tuple[int, int] | None = None

    def read(self, text: str) -> None:
        """Take in one line."""
        if text.strip():
            self.words.append(text.rstrip())
        if _PORT.search(text):
            self.port_in_use = self.port_in_use or text.strip()
        if _TIMEOUT.search(text):
            self.timed_out = self.timed_out or text.strip()
        if found := _FAILED.search(text):
            if int(found["local"]) not in self.failed:
                self._fail(int(found["local"]), None, found, "")
        elif (pid := closing_pid(text)) is not None and len(self.closing) < RANKS_READ:
            self.closing.add(pid)
        elif found := _AGENT_SIGNAL.search(text):
            self.signal = self.signal or signal_name(-int(found["number"]))
        else:
            self._read_summary(text)

    def _read_summary(self, text: str) -> None:
        if found := _SUMMARY_TIME.match(text):
            self._time = found["time"]
        elif found := _SUMMARY_RANK.match(text):
            self._summary = (int(found["rank"]), int(found["local"]))
        elif (found := _SUMMARY_CODE.match(text)) and self._summary is not None:
            rank, local = self._summary
            self._summary = None
            self._fail(local, rank, found, self._time)

    def _fail(self, local: int, rank: int | None, found: re.Match[str], time: str) -> None:
        known = self.failed.get(local)
        if known is None and len(self.failed) >= RANKS_READ:
            return
        order = known.order if known else len(self.failed)
        code = int(found["code"])
        name = signal_name(code) if code < 0 else None
        self.failed[local] = RankFailure(
            local, rank, None if name else code, name, order, time, int(found["pid"]) in self.closing
        )


def _remember(words: dict[int, deque[str]], exceptions: dict[int, str], rank: int, text: str) -> None:
    # torch marks the traceback of an uncaught exception with a rank of its own, inside the line
    inner = _RANK_LINE.match(text)
    text = (inner["text"] if inner else text).rstrip()
    if not text.strip() or _FRAME.match(text):
        return
    words.setdefault(rank, deque(maxlen=WORDS_KEPT)).append(text)
    if _EXCEPTION.match(text.strip()):
        exceptions[rank] = text.strip()
