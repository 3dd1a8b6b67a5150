"""The SSH user cannot become root without a password.

What it means
    Commands that need root are tried by `sudo -n`, which never prompts. Here it refused: sudo wants a password or a
    terminal, its rules do not list the user, or it is not installed. Whatever only root may read on this host stays
    unknown.

Why it matters to training
    Training itself needs no root. But PCIe access control, the boot log and some firmware facts are readable by root
    alone, and they decide whether GPUs reach each other directly. `orchestrate setup` needs root, too.

How we tell
    `sudo -n` starts the very shell that the audit uses for its root commands; `sudo -n true` would pass under rules that
    allow nothing else. Rules that allow single commands such as lspci are used where they exist, and still get this
    warning, because the other commands stay out of reach. The finding names the questions that are asked as root; those
    that were refused leave their checks unknown.

What to do
    Audit as root, or give the account a rule of its own, checked by visudo:
    `echo 'USER ALL=(ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/muster && sudo visudo -c`.
    On old Red Hat systems also take `requiretty` away for that user.

How to undo
    `sudo rm /etc/sudoers.d/muster`

Sources
    https://www.sudo.ws/docs/man/sudoers.man/
    https://www.sudo.ws/docs/man/sudo.man/
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from hostsetup import host
from hostsetup.facts.privilege import Sudo
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.privilege import Privilege

ID = "priv.sudo"
SOURCE = "https://www.sudo.ws/docs/man/sudoers.man/"

_SAW = {
    Sudo.PASSWORD: "sudo wants a password",
    Sudo.TERMINAL: "sudo wants a terminal (requiretty)",
    Sudo.NOT_ALLOWED: "sudo's rules do not allow it",
    Sudo.MISSING: "sudo is not installed",
}


def judge(privilege: Privilege) -> Iterator[Finding]:
    """Warn when root is out of reach."""
    if privilege.root:
        yield Finding(State.PASS, saw="the user is root" if privilege.sudo is Sudo.NEEDLESS else "sudo asks nothing")
        return
    user = shlex.quote(privilege.user or str(privilege.uid))
    rule = f"{user} ALL=(ALL) NOPASSWD: ALL"
    missing = privilege.sudo is Sudo.MISSING
    whose = "" if missing else f" for {privilege.user or privilege.uid}"
    asked = ", ".join(sorted(probe.name for probe in host.PROBES if probe.root))
    yield Finding(
        State.WARN,
        saw=f"{_SAW[privilege.sudo]}{whose}; what only root may read stays unknown ({asked})",
        wanted="root, or `sudo -n` for any command",
        remedy=Remedy(
            "Audit as root (this host has no sudo)." if missing else "Let the account use sudo without a password.",
            () if missing else (f"echo {shlex.quote(rule)} | sudo tee /etc/sudoers.d/muster", "sudo visudo -c"),
            needs_root=True,
        ),
        evidence=(f"sudo: {privilege.said}",),
    )
