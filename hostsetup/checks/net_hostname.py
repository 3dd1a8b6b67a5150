"""The host's own name leads to itself alone, or nowhere.

What it means
    What `hostname` prints resolves, on the host, to loopback addresses only (127.0.1.1 from the installers of Debian and
    Ubuntu is the usual case), or does not resolve at all.

Why it matters to training
    Gloo listens on the address that its own host name resolves to, and elastic agents publish their host name as the
    place to meet. With 127.0.1.1 the peers connect to themselves and wait until the time runs out.

How we tell
    `getent ahosts` with the host's own name, which asks the resolver as programs do; where that is not known, the
    lines of /etc/hosts. On this machine itself, reached without SSH, loopback is only told: it matters as soon as a
    second host takes part.

What to do
    The launcher passes numeric addresses and interface names, which avoids the trap for its own runs. To put the host
    right, give the name its address on the training network in /etc/hosts, and take it off the 127.0.1.1 or localhost
    line. Where cloud-init manages that file (`manage_etc_hosts`), change its template, or it comes back at the next boot.

How to undo
    Put the line of /etc/hosts back as it was; the finding shows it.

Sources
    https://github.com/pytorch/pytorch/issues/150532
    https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution
    https://docs.cloud-init.io/en/latest/reference/modules.html#update-etc-hosts
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.access import Access
    from hostsetup.facts.names import Names

ID = "net.hostname"
SOURCE = "https://github.com/pytorch/pytorch/issues/150532"

_WANTED = "an address of the host that its peers can reach"


def judge(names: Names, access: Access | None = None) -> Iterator[Finding]:
    """Fail when every address is loopback, or when there is none."""
    evidence = tuple(f"etc-hosts: {line}" for line in names.hosts_lines)
    if not names.addresses:
        remedy = Remedy(f"Give {names.hostname} its address in /etc/hosts or in DNS.", needs_root=True)
        yield Finding(
            State.FAIL, f"{names.hostname} does not resolve on the host itself", _WANTED, "", remedy, evidence
        )
    elif len(names.loopback) == len(names.addresses):
        saw = f"{names.hostname} resolves to {', '.join(names.addresses)} only"
        remedy = Remedy(
            f"In /etc/hosts, take {names.hostname} off the loopback line and give it its address on the training network.",
            needs_root=True,
        )
        alone = access is not None and access.local
        state = State.INFO if alone else State.FAIL
        more = "; it matters once a second host takes part" if alone else ""
        told = evidence or (f"{names.source}: {', '.join(names.addresses)}",)
        yield Finding(state, saw + more, _WANTED, "", remedy, told)
    else:
        beside = f" (and to {', '.join(names.loopback)})" if names.loopback else ""
        others = [address for address in names.addresses if address not in names.loopback]
        yield Finding(State.PASS, saw=f"{names.hostname} resolves to {', '.join(others)}{beside}")
