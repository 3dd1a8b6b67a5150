"""The host cannot be reached over SSH.

What it means
    Connecting and logging in did not get through, so nothing else is known of the host. The finding names the class of
    the failure: the name does not resolve (dns), nobody answers (timeout), the port is closed (refused), there is no
    route (unreachable), the login was not accepted (auth), the host's key is not known or is not the one that is
    recorded (host_key_unknown, host_key_changed), a jump host failed (proxy), or the connection was cut (closed).

Why it matters to training
    Every host of a run is started over SSH. One host out of reach means a smaller run or none. It also leaves the audit
    incomplete: a host that was not seen is neither good nor bad.

How we tell
    One connection is made with the settings of your SSH configuration, without prompts, and with a deadline. Evidence
    that was saved or pasted, without a record of the connection, is not judged.

What to do
    dns: correct the name in the hosts file or in ~/.ssh/config. timeout, unreachable: check that the host is up, the
    network, and the firewall between. refused: start sshd, or correct the port. auth: install your public key there
    (ssh-copy-id), or load it into the agent. host_key_unknown: compare the fingerprint with the host's own, then add
    the key to known_hosts. host_key_changed: find out why it changed before you remove the old key; somebody may be in
    between. proxy: log in to the jump host first.

How to undo
    Nothing is changed by this check. `ssh-keygen -R HOST` removes a key from known_hosts again.

Sources
    https://man.openbsd.org/ssh_config
    https://docs.fabfile.org/en/latest/api/connection.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts.access import Outcome
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.access import Access

ID = "ssh.reachable"
SOURCE = "https://man.openbsd.org/ssh_config"

_NEXT = {
    Outcome.DNS: "Correct the name in the hosts file, or give the alias a HostName in ~/.ssh/config.",
    Outcome.TIMEOUT: "Check that the host is up and that no firewall drops the SSH port.",
    Outcome.REFUSED: "Start sshd on the host, or correct the port.",
    Outcome.UNREACHABLE: "Check the route to the host; a firewall may also answer this way.",
    Outcome.AUTH: "Install your public key on the host (ssh-copy-id), or load the key into the agent.",
    Outcome.HOST_KEY_UNKNOWN: "Compare the host's key with its own fingerprint, then add it to known_hosts.",
    Outcome.HOST_KEY_CHANGED: "Find out why the host's key changed before you replace it in known_hosts.",
    Outcome.PROXY: "Log in to the jump host first; its own error is in the detail.",
    Outcome.CLOSED: "See the host's sshd log: it accepted the connection and then cut it.",
    Outcome.ERROR: "Try `ssh -v` with the same destination.",
}


def skip(access: Access) -> str:
    """Spare evidence that nobody connected for."""
    return "the evidence was brought, nobody connected" if access.outcome is Outcome.BROUGHT else ""


def judge(access: Access) -> Iterator[Finding]:
    """Fail with the class of the error."""
    if not access.failed:
        how = f", {access.detail}" if access.detail else ""
        yield Finding(State.PASS, saw="this machine itself" if access.local else f"connected and logged in{how}")
        return
    yield Finding(
        State.FAIL,
        saw=f"{access.outcome}: {access.detail or 'no detail'}",
        wanted="a connection and a login without a prompt",
        remedy=Remedy(access.next or _NEXT[access.outcome]),
        evidence=(f"ssh: {access.outcome}: {access.detail}",),
    )
