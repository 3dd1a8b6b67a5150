"""The account has other numbers on other hosts, or may not use the container engine.

What it means
    The user's uid or gid differ from host to host, or the account neither belongs to the group that may speak to the
    engine nor becomes root without a password.

Why it matters to training
    Shared storage knows numbers, not names: with another uid a host cannot read the checkpoint that its neighbour wrote,
    or writes files that the others cannot replace. Without the engine the host takes no part at all.

How we tell
    `id` of the SSH user, twice: for the session, and for the name. An account that was put into the group docker a
    moment ago still has a session without it, and needs a new login only. Whether the engine is permitted is not
    guessed from groups: the engine's own answer counts. Different numbers are a warning where a network file system is
    mounted, and only told elsewhere.

What to do
    Not permitted: `usermod -aG docker USER`, then log in anew (membership is as good as root). Other numbers: give the
    account the same uid and gid everywhere, by a directory service or `usermod -u UID -g GID USER`, and let
    `find / -xdev -uid OLD -exec chown -h USER {} +` follow.

How to undo
    `gpasswd -d USER docker`; `usermod -u OLD USER`.

Sources
    https://docs.docker.com/engine/install/linux-postinstall/
    https://man7.org/linux/man-pages/man8/usermod.8.html
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup.facts.docker import Engine
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.account import Account
    from hostsetup.facts.docker import Docker
    from hostsetup.facts.mounts import Mounts
    from hostsetup.facts.privilege import Privilege

ID = "os.users"
SOURCE = "https://docs.docker.com/engine/install/linux-postinstall/"


def judge(account: Account, docker: Docker, privilege: Privilege | None = None) -> Iterator[Finding]:
    """Fail where the engine is out of the account's reach."""
    who = f"uid {account.uid} ({account.user or 'no name'}), gid {account.gid} ({account.group or 'no name'})"
    rootless = privilege is None or not privilege.root
    if docker.engine is not Engine.DENIED or not rootless:
        yield Finding(State.PASS, saw=who)
        return
    user = shlex.quote(account.user or str(account.uid))
    fresh = "docker" in account.listed - account.groups
    yield Finding(
        State.FAIL,
        saw=f"{who} may not speak to the engine"
        + ("; it is in the group docker, but this session began before that" if fresh else ", and is not root by sudo"),
        wanted="an account in the group docker, or with `sudo -n`",
        remedy=Remedy(
            "End the account's sessions and log in anew.", (f"sudo loginctl terminate-user {user}",), needs_root=True
        )
        if fresh
        else Remedy(
            "Add the account to the group docker, then log in anew.",
            (f"sudo usermod -aG docker {user}",),
            needs_root=True,
        ),
        evidence=(f"id: groups={','.join(sorted(account.groups))[:200]}", f"docker-info: {docker.said[:200]}"),
    )


def judge_fleet(account: Mapping[str, Account], mounts: Mapping[str, Mounts] | None = None) -> Iterator[Finding]:
    """Name the hosts where the numbers differ."""
    numbers = {host: f"uid {one.uid}, gid {one.gid}" for host, one in account.items()}
    shared = any(one.shared for one in (mounts or {}).values())
    remedy = Remedy("Give the account the same uid and gid on every host.", needs_root=True)
    state = State.WARN if shared else State.INFO
    for finding in uniform(numbers, "account", remedy=remedy, state=state, probe="id"):
        if finding.state is not State.PASS:
            yield finding
