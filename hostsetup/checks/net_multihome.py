"""Two interfaces share a subnet, or strict filtering drops what comes in on the wrong one.

What it means
    Two interfaces of the host have addresses in one subnet and no routing rules of their own, or the host has several
    networks while the kernel's reverse-path filter is strict (rp_filter is 1).

Why it matters to training
    Linux sends by destination, not by source: of two interfaces in one subnet one carries all the traffic, and answers
    to the other leave through it. Peers that asked one NIC hear from another; ARP may even give them the wrong hardware
    address. NCCL, which uses all interfaces at once, then loses bandwidth, hangs, or sees "Network is unreachable" from
    ibv_modify_qp on RoCE. A strict filter drops packets that arrive on an interface that the way back would not take.

How we tell
    Addresses with their prefix lengths from `ip addr`, of running interfaces that peers may reach: bridges of engines,
    tunnels, link-local addresses and prefixes of one or two addresses do not count. rp_filter is the larger one of the
    interface's value and that of `all`; 2 (loose) is fine. Where routing rules name the source addresses, the host has
    policy routing and sharing a subnet is by design. We do not follow these rules further.

What to do
    Give each NIC a subnet of its own (one for each rail), which is best; or else bond them, or add a routing table and a
    rule for each source address with arp_ignore=1 and arp_announce=2. Set rp_filter to 2 on hosts with several networks.

How to undo
    Put the addresses back; take the file out of /etc/sysctl.d and run `sysctl --system`.

Sources
    https://docs.kernel.org/networking/ip-sysctl.html
    https://github.com/NVIDIA/nccl/issues/1581
    https://github.com/NVIDIA/nccl/issues/1131
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.ip_addr import Address
    from hostsetup.facts.net import Interface, Net

ID = "net.multihome"
SOURCE = "https://github.com/NVIDIA/nccl/issues/1581"

_SHOWN = 8
_STRICT = 1
_LOOSEN = Remedy(
    "Make the reverse-path filter loose.",
    ("printf 'net.ipv4.conf.all.rp_filter = 2\\n' | sudo tee /etc/sysctl.d/90-rp-filter.conf && sudo sysctl --system",),
    needs_root=True,
)


def judge(net: Net) -> Iterator[Finding]:
    """Warn of shared subnets and of a strict filter on a host with several networks."""
    if not net.addressed:
        yield Finding(State.UNKNOWN, saw="the listing shows no addresses")
        return
    homes = [one for one in net.usable if one.kind in {"physical", "bond", "vlan", "wireless", "veth"}]
    shared = tuple(_shared(homes))
    ruled = {rule.partition("/")[0] for rule in net.rules}
    open_pairs = [pair for pair in shared if not {str(address.ip) for _, address in pair} <= ruled]
    strict = [one for one in homes if _filter(net, one) == _STRICT] if len(homes) > 1 else []
    if open_pairs:
        yield _finding(net, open_pairs)
    if strict:
        listed = ", ".join(one.name for one in strict[:_SHOWN])
        yield Finding(
            State.WARN,
            saw=f"rp_filter is strict on {listed}, and the host has {len(homes)} networks",
            wanted="rp_filter 2 (loose) on a host with several networks",
            subject="rp_filter",
            remedy=_LOOSEN,
            evidence=tuple(f"sysfs-net: conf/{one.name}/rp_filter:{_filter(net, one)}" for one in strict[:_SHOWN]),
        )
    if not open_pairs and not strict:
        policy = ", shared subnets have routing rules for their sources" if shared else ""
        names = ", ".join(one.name for one in homes[:_SHOWN]) or "none"
        yield Finding(State.PASS, saw=f"interfaces that peers may reach: {names}{policy}")


def _shared(homes: list[Interface]) -> Iterator[tuple[tuple[Interface, Address], tuple[Interface, Address]]]:
    held = [(one, address) for one in homes for address in one.routable if address.network.num_addresses > 2]
    for a, b in combinations(held[:200], 2):
        if a[0] is not b[0] and a[1].network == b[1].network:
            yield a, b


def _filter(net: Net, interface: Interface) -> int | None:
    switches = net.switches or {}
    values = [switches.get(name, {}).get("rp_filter") for name in ("all", interface.name)]
    return max((value for value in values if value is not None), default=None)


def _finding(net: Net, pairs: list[tuple[tuple[Interface, Address], tuple[Interface, Address]]]) -> Finding:
    held = {one.name: address for pair in pairs for one, address in pair}
    told = ", ".join(f"{name} {address}" for name, address in list(held.items())[:_SHOWN])
    arp = {
        (switch.get("arp_ignore"), switch.get("arp_announce"))
        for name in held
        if (switch := (net.switches or {}).get(name))
    }
    more = "; arp_ignore and arp_announce are 0 there: any of them answers for the others" if arp == {(0, 0)} else ""
    return Finding(
        State.WARN,
        saw=f"{told} share a subnet{more}",
        wanted="one subnet for each interface, a bond, or routing rules for each source address",
        subject=", ".join(list(held)[:_SHOWN]),
        remedy=Remedy(
            "Give each NIC a subnet of its own, bond them, or add a routing table and a rule for each source."
        ),
        evidence=tuple(f"ip-addr: {name} {address}" for name, address in list(held.items())[:_SHOWN]),
    )
