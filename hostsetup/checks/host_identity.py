"""Two hosts of the list are one machine, or cannot be told apart.

What it means
    The same machine stands twice in the list (by an alias, or by two of its addresses); or two machines have the same
    host name, the same GPU, or were copied from one image without getting a machine id of their own.

Why it matters to training
    A machine that is listed twice gets two nodes: both take the same GPUs, NCCL ends with `Duplicate GPU detected`, or
    memory runs out. Rendezvous and NCCL find out by host names who is on which machine, and so do people who read logs.
    Equal machine ids make DHCP hand one address to two hosts.

How we tell
    The kernel makes a new boot id at every start, so two entries with the same one are the same kernel. Containers
    share it with their machine; they differ in their process namespace, and are only told of. GPUs are compared by
    UUID, where the driver shows it. Machine ids count between machines only, not between containers of one image.

What to do
    Listed twice: take one entry out of the hosts file. Same name: `hostnamectl set-hostname NAME`, and the same name in
    /etc/hosts. Same machine id: `rm /etc/machine-id /var/lib/dbus/machine-id; systemd-machine-id-setup`, then reboot.

How to undo
    Set the old name again. The old machine id may be written back to /etc/machine-id.

Sources
    https://www.freedesktop.org/software/systemd/man/latest/machine-id.html
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from hostsetup.facts.identity import Identity

ID = "host.identity"
SOURCE = "https://www.freedesktop.org/software/systemd/man/latest/machine-id.html"

_WANTED = "every entry another machine, with a name and an id of its own"


def judge_fleet(identity: Mapping[str, Identity]) -> Iterator[Finding]:
    """Compare boots, then names, GPUs and ids of what is not the same machine."""
    twice = _groups(identity, lambda one: (one.boot_id, one.pid_namespace) if one.boot_id else None)
    found = [_twice(hosts, identity) for hosts in twice]
    # of an entry that stands there twice the first is looked at further
    left = {host: one for host, one in identity.items() if not any(host in hosts[1:] for hosts in twice)}
    found += _same_names(left)
    found += _same_gpus(left)
    found += _same_ids(left)
    yield from found
    for hosts in _groups(left, lambda one: one.boot_id or None):
        yield Finding(
            State.INFO,
            saw=f"{len(hosts)} containers of one machine: they share its CPUs, memory and clock",
            subject="one machine",
            evidence=_lines(hosts, identity, "boot_id"),
            scope="cluster",
            hosts=hosts,
        )
    if not found:
        boots = [one.boot_id for one in identity.values() if one.boot_id]
        seen = "names and boots" if boots and len(set(boots)) == len(boots) else "names"
        yield Finding(State.PASS, saw=f"{len(identity)} hosts differ in their {seen}", wanted=_WANTED, scope="cluster")


def _groups(identity: Mapping[str, Identity], key: Callable[[Identity], Hashable]) -> list[tuple[str, ...]]:
    groups: dict[Hashable, list[str]] = {}
    for host, one in identity.items():
        if (value := key(one)) is not None:
            groups.setdefault(value, []).append(host)
    return [tuple(hosts) for hosts in groups.values() if len(hosts) > 1]


def _twice(hosts: tuple[str, ...], identity: Mapping[str, Identity]) -> Finding:
    return Finding(
        State.FAIL,
        saw=f"{len(hosts)} entries lead to the same machine ({identity[hosts[0]].hostname or 'no name'})",
        wanted=_WANTED,
        subject="same machine",
        remedy=Remedy(
            f"Keep one of {', '.join(hosts[:5])} in the hosts file; slots=N asks for more ranks on one machine."
        ),
        evidence=_lines(hosts, identity, "boot_id"),
        scope="cluster",
        hosts=hosts,
    )


def _same_names(identity: Mapping[str, Identity]) -> Iterator[Finding]:
    for hosts in _groups(identity, lambda one: one.hostname.lower() or None):
        yield Finding(
            State.FAIL,
            saw=f"{len(hosts)} hosts call themselves {identity[hosts[0]].hostname}",
            wanted=_WANTED,
            subject="same host name",
            remedy=Remedy(
                "Give each host a name of its own, then log in anew.",
                ("sudo hostnamectl set-hostname NAME",),
                needs_root=True,
            ),
            evidence=_lines(hosts, identity, "hostname"),
            scope="cluster",
            hosts=hosts,
        )


def _same_gpus(identity: Mapping[str, Identity]) -> Iterator[Finding]:
    owners: dict[str, list[str]] = {}
    for host, one in identity.items():
        for uuid in one.gpu_uuids:
            owners.setdefault(uuid, []).append(host)
    shared: dict[tuple[str, ...], list[str]] = {}
    for uuid, owning in owners.items():
        if len(owning) > 1:
            shared.setdefault(tuple(owning), []).append(uuid)
    for hosts, uuids in shared.items():
        yield Finding(
            State.FAIL,
            saw=f"{len(uuids)} GPUs are seen by {len(hosts)} hosts: {uuids[0]}",
            wanted="each GPU on one host",
            subject="same GPUs",
            remedy=Remedy("Keep one of these hosts, or give each container GPUs of its own (--gpus device=...)."),
            evidence=tuple(f"machine-files: {host}: GPU UUID: {uuids[0]}" for host in hosts[:5]),
            scope="cluster",
            hosts=hosts,
        )


def _same_ids(identity: Mapping[str, Identity]) -> Iterator[Finding]:
    machines = {host: one for host, one in identity.items() if one.boot_id and not one.container}
    for hosts in _groups(machines, lambda one: one.machine_id or None):
        if len({identity[host].boot_id for host in hosts}) == len(hosts):
            yield Finding(
                State.WARN,
                saw=f"{len(hosts)} machines have the same machine id: they were copied from one image",
                wanted=_WANTED,
                subject="same machine id",
                remedy=Remedy(
                    "Give all but one of them a new machine id, then reboot them.",
                    ("sudo rm -f /etc/machine-id /var/lib/dbus/machine-id", "sudo systemd-machine-id-setup"),
                    needs_root=True,
                    needs_reboot=True,
                ),
                evidence=_lines(hosts, identity, "machine_id"),
                scope="cluster",
                hosts=hosts,
            )


def _lines(hosts: tuple[str, ...], identity: Mapping[str, Identity], name: str) -> tuple[str, ...]:
    return tuple(f"machine-files: {host}: {name} {getattr(identity[host], name)}" for host in hosts[:5])
