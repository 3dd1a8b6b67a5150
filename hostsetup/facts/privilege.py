"""Knows which account was used on a host and whether it becomes root without a prompt. Never asks for a password."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from hostsetup.model import Evidence, Known, Probe, Unknown

# what the audit itself needs: a shell as root, not merely `sudo true`
PROBES = (
    Probe("id", """id -u || exit; id -un; id; id "$(id -un 2>/dev/null)"; printf 'home %s\\n' "$HOME\""""),
    Probe("sudo", "sudo -n env sh -c :"),
)


class Sudo(StrEnum):
    """What `sudo -n` said. `NEEDLESS`: the user is root."""

    NEEDLESS = "needless"
    YES = "yes"
    PASSWORD = "password"  # noqa: S105 - the name of an answer
    TERMINAL = "terminal"
    NOT_ALLOWED = "not allowed"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Privilege:
    """The account and its way to root. `said`: sudo's own words when it refused."""

    uid: int
    user: str
    sudo: Sudo
    said: str = ""

    @property
    def root(self) -> bool:
        """Whether root commands can be run."""
        return self.sudo in {Sudo.NEEDLESS, Sudo.YES}


_REFUSALS = (  # sudo and sudo-rs, most specific first
    ("you must have a tty", Sudo.TERMINAL),
    ("not in the sudoers", Sudo.NOT_ALLOWED),
    ("may not run sudo", Sudo.NOT_ALLOWED),
    ("not allowed to", Sudo.NOT_ALLOWED),
    ("afraid i can't do that", Sudo.NOT_ALLOWED),
    ("no new privileges", Sudo.NOT_ALLOWED),
    ("password is required", Sudo.PASSWORD),
    ("authentication is required", Sudo.PASSWORD),
    ("terminal is required", Sudo.PASSWORD),
    ("command not found", Sudo.MISSING),
    ("sudo: not found", Sudo.MISSING),
)


def parse_id(text: str) -> tuple[int, str]:
    """Read `id -u` and `id -un`: the number, and the name where there is one. What follows is for `account`."""
    lines = text.partition("uid=")[0].split()
    if not lines or not lines[0].isascii() or not lines[0].isdigit() or len(lines[0]) > 10:
        raise ValueError("no user number in the answer of id")
    return int(lines[0]), lines[1] if len(lines) > 1 else ""


def parse_refusal(text: str) -> Sudo:
    """Read what sudo said when it refused."""
    low = text.lower()
    for words, meaning in _REFUSALS:
        if words in low:
            return meaning
    raise ValueError("sudo refused in words that are not understood")


def read(evidence: Evidence) -> Known[Privilege] | Unknown:
    """Return the account and its way to root."""
    reply = evidence.answer("id")
    if isinstance(reply, Unknown):
        return reply
    try:
        uid, user = parse_id(reply.text)
    except ValueError as error:
        return Unknown(f"`id`: {error}")
    if uid == 0:
        return Known(Privilege(uid, user, Sudo.NEEDLESS))
    sudo = evidence.replies.get("sudo")
    if sudo is not None and sudo.exit_code == 127:
        return Known(Privilege(uid, user, Sudo.MISSING, "sudo is not installed"))
    answer = evidence.answer("sudo")
    if isinstance(answer, Unknown):
        return answer
    if answer.exit_code == 0:
        return Known(Privilege(uid, user, Sudo.YES))
    said = answer.error_text.strip() or answer.text.strip()
    try:
        return Known(Privilege(uid, user, parse_refusal(said), said.splitlines()[-1]))
    except ValueError as error:
        return Unknown(f"`sudo`: {error}: {said[:200]}")


def tell(privilege: Privilege) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"user": privilege.user, "uid": privilege.uid, "sudo": privilege.sudo.value}
