"""Knows the account's numbers and groups: those of the session, and those that a new login would have. Changes none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hostsetup.model import Known, Unknown

if TYPE_CHECKING:
    from hostsetup.model import Evidence

_ID = re.compile(
    r"uid=(\d{1,10})(?:\(([^)]{0,64})\))? gid=(\d{1,10})(?:\(([^)]{0,64})\))?(?: groups=(\S+(?: \S+)*))?", re.ASCII
)
_GROUP = re.compile(r"\d{1,10}(?:\(([^),]{1,64})\))?", re.ASCII)
_HOME = re.compile(r"home (/.{0,300})")


@dataclass(frozen=True, slots=True)
class Account:
    """`groups`: names of the session's groups. `listed`: those that the group database gives the user; empty: not said."""

    uid: int
    gid: int
    user: str = ""
    group: str = ""
    groups: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    home: str = ""


def parse_account(text: str) -> Account:
    """Read `id`, once for the session and once for the user's name, and `home DIR`."""
    said = [found for line in text.splitlines() if (found := _ID.match(line.strip()[:20_000]))]
    home = next((found[1] for line in text.splitlines() if (found := _HOME.fullmatch(line))), "")
    if not said:
        raise ValueError("no line `uid=... gid=...` of id")
    session, listed = said[0], said[1] if len(said) > 1 and said[1][1] == said[0][1] else None
    return Account(
        uid=int(session[1]),
        gid=int(session[3]),
        user=session[2] or "",
        group=session[4] or "",
        groups=_groups(session[5]),
        listed=_groups(listed[5]) if listed else frozenset(),
        home=home,
    )


def _groups(text: str | None) -> frozenset[str]:
    return frozenset(name for found in _GROUP.finditer((text or "").partition(" context=")[0]) if (name := found[1]))


def read(evidence: Evidence) -> Known[Account] | Unknown:
    """Return the account."""
    reply = evidence.answer("id")
    if isinstance(reply, Unknown):
        return reply
    try:
        return Known(parse_account(reply.text))
    except ValueError as error:
        return Unknown(f"`id`: {error}")


def tell(account: Account) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"uid": account.uid, "gid": account.gid, "groups": sorted(account.groups)}
