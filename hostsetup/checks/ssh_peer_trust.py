"""A host cannot log in on a peer, although something that was chosen needs that.

What it means
    From one host, `ssh PEER true` fails without a prompt: the peer's key is not known there, or the login is refused.

Why it matters to training
    torchrun, and so `orchestrate launch`, needs logins from the launcher to every host and none between hosts. mpirun and
    tools of its kind start their ranks from the first host over SSH and fail, or wait for a password, where it may not log
    in. Forwarding the agent of whoever starts the job helps until the first restart at night.

How we tell
    Nothing is tried unless the site's file says that it is needed (`ssh.peer_trust.needed`), for a failed login is an
    event that some sites watch. Then each host tries `ssh -o BatchMode=yes` to the peers that it is sent to anyway, under
    the name that they call themselves.

What to do
    Give the account a key that its own authorized_keys holds on every host, and put every host's key into known_hosts
    (`ssh-keyscan`, compared with the hosts' own). Or leave it, and start with torchrun.

How to undo
    Take the key out of authorized_keys.

Sources
    https://docs.open-mpi.org/en/main/launching-apps/ssh.html
    https://man.openbsd.org/ssh_config
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect
    from hostsetup.facts.peers import Peers

ID = "ssh.peer_trust"
SOURCE = "https://docs.open-mpi.org/en/main/launching-apps/ssh.html"
EXPECTS = {"ssh.peer_trust.needed": Want(bool, "whether hosts must be able to log in on each other", default=False)}

_WANTED = "every host logs in on its peers without a prompt"
_MOST = 20


def skip(expect: Expect, peers: Peers | None = None) -> str:
    """Spare everybody who does not need it."""
    if not expect.get("ssh.peer_trust.needed"):
        return "logins between hosts are not needed: torchrun starts from the launcher"
    return (
        ""
        if peers is None or peers.asked
        else "hosts were not sent to their peers (--no-pairs, one host, or no address for peers)"
    )


def judge_fleet(peers: Mapping[str, Peers]) -> Iterator[Finding]:
    """Name the pairs without a login."""
    pairs = [(host, peer) for host, found in peers.items() for peer in found.peers]
    untried = sum(peer.trust is None for _, peer in pairs)
    bad = [(host, peer, peer.trust) for host, peer in pairs if peer.trust not in {None, "ok"}]
    for host, peer, said in bad[:_MOST]:
        yield Finding(
            State.WARN,
            saw=f"{host} cannot log in on {peer.name}: {said or 'no answer'}",
            wanted=_WANTED,
            subject=f"{host} -> {peer.name}",
            remedy=Remedy(
                "Authorise one key of the account on every host and make the hosts' keys known, or use torchrun."
            ),
            evidence=(f"peers: trust {said}",),
            scope="pair",
            hosts=(host, peer.name),
        )
    if len(bad) > _MOST:
        text = f"{len(bad) - _MOST} more pairs have no login"
        yield Finding(State.WARN, text, _WANTED, remedy=Remedy("Authorise one key of the account on every host."))
    if untried:
        yield Finding(State.UNKNOWN, f"the login was not tried on {untried} pairs", _WANTED)
    elif not bad:
        yield Finding(State.PASS, f"{len(pairs)} ordered pairs log in without a prompt", _WANTED)
