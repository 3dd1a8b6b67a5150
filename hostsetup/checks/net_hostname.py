"""The host's own name leads to itself alone, astray, or nowhere.

What it means
    What `hostname` prints resolves, on the host, to loopback addresses only (127.0.1.1 from the installers of Debian and
    Ubuntu is the usual case), or does not resolve at all. Or it resolves to an address that no interface of the host
    has, to a bridge of containers, or to another network than the one that training uses.

Why it matters to training
    Gloo listens on the address that its own host name resolves to, and elastic agents publish their host name as the
    place to meet. With 127.0.1.1 the peers connect to themselves and wait until the time runs out.

How we tell
    `getent ahosts` with the host's own name, which asks the resolver as programs do (`host` and `dig` ask the name server
    alone and never see /etc/hosts); where that is not known, the lines of /etc/hosts. Loopback beside a real address is
    fine. The same for the full name (`hostname -f`). An address is compared with those of the host's interfaces where they
    are known, and with the training network only where the site names its interface (net.iface.name). On this machine
    itself, reached without SSH, all is only told: it matters as soon as a second host takes part.

What to do
    The launcher passes numeric addresses and interface names, which avoids the trap for its own runs. To put the host
    right, give the name its address on the training network in /etc/hosts, and take it off the 127.0.1.1 or localhost
    line. In a container with the host's network the same lines hold. Where cloud-init manages that file (`manage_etc_hosts`), change its template, or it comes back at the next boot.

How to undo
    Put the line of /etc/hosts back as it was; the finding shows it.

Sources
    https://github.com/pytorch/pytorch/issues/150532
    https://www.debian.org/doc/manuals/debian-reference/ch05.en.html#_the_hostname_resolution
    https://docs.cloud-init.io/en/latest/reference/modules.html#update-etc-hosts
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.access import Access
    from hostsetup.facts.names import Names
    from hostsetup.facts.net import Net

ID = "net.hostname"
SOURCE = "https://github.com/pytorch/pytorch/issues/150532"

_WANTED = "an address of the host that its peers can reach"


def judge(names: Names, expect: Expect, access: Access | None = None, net: Net | None = None) -> Iterator[Finding]:
    """Fail when every address is loopback, or when there is none; warn of names that lead astray."""
    alone = access is not None and access.local
    lines = tuple(f"etc-hosts: {line}" for line in names.hosts_lines)
    evidence = lines or (f"{names.source}: {', '.join(names.addresses)}",)
    others = [address for address in names.addresses if address not in names.loopback]
    if not names.addresses:
        remedy = Remedy(f"Give {names.hostname} its address in /etc/hosts or in DNS.", needs_root=True)
        yield Finding(State.FAIL, f"{names.hostname} does not resolve on the host itself", _WANTED, "", remedy, lines)
    elif not others:
        saw = f"{names.hostname} resolves to {', '.join(names.addresses)} only"
        yield _finding(State.FAIL, saw, names.hostname, evidence, alone=alone)
    elif astray := _astray(others, net, expect.text("net.iface.name")):
        yield _finding(State.WARN, f"{names.hostname} resolves to {astray}", names.hostname, evidence, alone=alone)
    elif names.fqdn_is_loopback:
        saw = f"the full name {names.fqdn}, which elastic agents publish, resolves to {', '.join(names.fqdn_addresses)}"
        told = (f"fqdn: {names.fqdn}: {', '.join(names.fqdn_addresses)}",)
        yield _finding(State.WARN, saw, names.fqdn, told, alone=alone)
    else:
        beside = f" (and to {', '.join(names.loopback)})" if names.loopback else ""
        yield Finding(State.PASS, saw=f"{names.hostname} resolves to {', '.join(others)}{beside}")


def _finding(state: State, saw: str, name: str, evidence: tuple[str, ...], *, alone: bool) -> Finding:
    remedy = Remedy(
        f"In /etc/hosts, take {name} off that line and give it its address on the training network.", needs_root=True
    )
    more = "; it matters once a second host takes part" if alone else ""
    return Finding(State.INFO if alone else state, saw + more, _WANTED, "", remedy, evidence)


def _astray(addresses: list[str], net: Net | None, wanted: str | None) -> str:
    """Return where the name leads when that is none of the host's interfaces for peers; empty when it is one."""
    if net is None:
        return ""
    holders = {str(own.ip): one for one in net.interfaces for own in one.addresses}
    first = next((one for one in addresses if ipaddress.ip_address(one).version == 4), addresses[0])
    holder = holders.get(first)
    if holder is None:
        return f"{first}, which no interface of the host has"
    if net.misleading(holder):
        return f"{first} of {holder.name}, which leads to no peer"
    if wanted and holder.name != wanted:
        return f"{first} of {holder.name}, not of the training interface {wanted}"
    return ""
