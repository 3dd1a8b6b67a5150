"""Knows the kernel's boot parameters: running, configured in GRUB's defaults, and what the kernel said of them.

Changes no boot file; runs none of the shell code in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from hostsetup.facts.shell import HOLE, commands
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostsetup.facts.kernel_log import KernelLog

TELLS = "boot"  # the name of these facts in JSON

PROBES = (
    Probe("proc-cmdline", "cat /proc/cmdline"),
    # grep, unlike cat, ends a last line that has no end
    Probe("etc-default-grub", "grep -sh '' /etc/default/grub /etc/default/grub.d/*.cfg"),
)

_SAID = re.compile(r"(?P<override>PCIe ACS overrides? enabled)|Unknown kernel command line parameters? ", re.IGNORECASE)
_SETTING = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)", re.ASCII | re.DOTALL)
_ADDRESS = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE | re.ASCII)
_BESIDE = re.compile(
    r"```\w*|(?:\S{1,200}(?: \S{1,200}\])?)?[$#>%](?: (?:sudo )?cat /proc/cmdline)?|(?:sudo )?cat /proc/cmdline"
)
_LOGGED = re.compile(r"^(?:.{0,100}\b)?(?:Kernel c|C)ommand line: ")
_FENCE = re.compile(r"^[ \t]*```.*$", re.MULTILINE)
_BEFORE = re.compile(
    r"^(?:[\w./-]{0,200}grub[\w./-]{0,60}:)?(?:\d{1,5}[:-])?(?=GRUB_)", re.MULTILINE | re.ASCII
)  # what grep puts there
_OPENS, _CLOSES = {"if", "case", "for", "while", "until", "{", "("}, {"fi", "esac", "done", "}", ")"}
_NAMES = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT")
_OTHER_WORDS = {"then", "else", "do"}


@dataclass(frozen=True, slots=True)
class Words:
    """The parameters of one boot line. `dynamic`: words of which a part is only known when the script runs.

    `lost`: what an unquoted `;` cuts off.
    """

    words: tuple[str, ...]
    dynamic: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cmdline:
    """`running`: the parameters of this boot; `configured`: those of GRUB's defaults. None: not known.

    `dynamic`, `lost`: as in Words, of GRUB's defaults. `log`: the kernel's lines about parameters it does not know and
    about ACS overrides; None when the log was not read.
    """

    running: tuple[str, ...] | None
    configured: tuple[str, ...] | None = None
    log: tuple[str, ...] | None = None
    dynamic: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def parse_cmdline(text: str) -> tuple[str, ...]:
    """Split /proc/cmdline as the kernel does: at blanks outside double quotes; a shell's prompt beside it is left out.

    A line that was wrapped is refused: nobody can tell whether a word ended there.
    """
    if "\0" in text or "\x1b" in text or len(text) > 1 << 16:
        raise ValueError("not a kernel command line")
    lines = [line for line in map(str.strip, text.splitlines()) if line and not _BESIDE.fullmatch(line)]
    if len(lines) != 1:
        raise ValueError("a kernel command line is one line")
    return split_cmdline(_LOGGED.sub("", lines[0], count=1))


def split_cmdline(line: str) -> tuple[str, ...]:
    """Split a line at blanks outside double quotes."""
    return tuple(word.replace('"', "") for word in re.findall(r'(?:"[^"]*"?|[^\s"])+', line))


def parse_grub(text: str) -> Words:
    """Return the parameters that GRUB's defaults, a shell script, add to the line of a normal boot."""
    variables = dict.fromkeys(_NAMES, "")
    known = False
    lost: list[str] = []
    depth = 0
    for command in commands(_BEFORE.sub("", _FENCE.sub("", text)), variables):
        words = list(command.words)
        while words and words[0] in _OTHER_WORDS | {"export"}:
            words.pop(0)
        if not words:
            continue
        depth += (words[0] in _OPENS) - (words[0] in _CLOSES)
        settings = [found for word in words if (found := _SETTING.fullmatch(word))]
        if len(settings) == len(words):
            unsure = depth > 0 or command.before in {"&&", "||", "|"}
            for found in settings:
                _assign(variables, found, unsure=unsure)
                known |= found[1].startswith("GRUB_")
        elif command.before == ";" and any(map(_ADDRESS.search, words)):
            lost += words
    if not known:
        raise ValueError("not GRUB's defaults: no GRUB_ setting")
    line = split_grub(" ".join(variables[name] for name in _NAMES))
    return Words(line.words, line.dynamic, (*line.lost, *lost))


def _assign(variables: dict[str, str], found: re.Match[str], *, unsure: bool) -> None:
    name, more, value = found.groups()
    old = variables.get(name, "")
    new = old + value if more else value
    # where nobody knows whether the assignment is run, both values are possible
    variables[name] = f"{old} {HOLE}" if unsure and new != old else new
    if len(variables[name]) > 1 << 16:
        raise ValueError("a setting too long for a boot line")


def split_grub(text: str, variables: Mapping[str, str] | None = None) -> Words:
    """Split the arguments of GRUB's `linux` command; an unquoted `;` ends it."""
    words: list[str] = []
    lost: list[str] = []
    # a hole is no letter that the lexer takes; `?` never begins a variable's name
    for i, command in enumerate(commands(text.replace(HOLE, "$?"), variables or {})):
        (words if i == 0 else lost).extend(command.words)
    return Words(
        tuple(word for word in words if HOLE not in word),
        tuple(word.replace(HOLE, "...") for word in words if HOLE in word),
        tuple(word.replace(HOLE, "...") for word in lost),
    )


def read(evidence: Evidence, kernel_log: KernelLog | None = None) -> Known[Cmdline] | Unknown:
    """Return what is known of the boot parameters; unknown when neither the running nor the configured ones are."""
    reasons: list[str] = []
    running: tuple[str, ...] | None = None
    grub: Words | None = None
    text = _text(evidence, "proc-cmdline", reasons)
    try:
        running = None if text is None else parse_cmdline(text)
    except ValueError as error:
        reasons.append(f"`proc-cmdline`: {error}")
    text = _text(evidence, "etc-default-grub", reasons)
    try:
        grub = None if text is None else parse_grub(text)
    except ValueError as error:
        reasons.append(f"`etc-default-grub`: {error}")
    if running is None and grub is None:
        return Unknown(reasons[0])
    log = kernel_log.find(_SAID) if kernel_log else None
    if grub is None:
        return Known(Cmdline(running, None, log))
    return Known(Cmdline(running, grub.words, log, grub.dynamic, grub.lost))


def _text(evidence: Evidence, probe: str, reasons: list[str]) -> str | None:
    reply = evidence.answer(probe)
    if isinstance(reply, Unknown):
        reasons.append(reply.reason)
        return None
    return reply.text


def values(words: Iterable[str], name: str) -> tuple[str, ...]:
    """Return the values of a parameter, in order; the kernel takes `-` for `_` in a name, and `--` for the end."""
    wanted = name.replace("-", "_")
    words = takewhile(lambda word: word != "--", words)
    return tuple(value for key, _, value in (word.partition("=") for word in words) if key.replace("-", "_") == wanted)


def tell(cmdline: Cmdline) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {} if cmdline.running is None else {"args": list(cmdline.running)}
