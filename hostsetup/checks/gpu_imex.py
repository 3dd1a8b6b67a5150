"""Hosts that should share an NVLink domain do not, or the service that lets them is not up.

What it means
    In rack-scale systems NVLink reaches beyond one host. GPUs that tell another cluster or clique, an IMEX daemon that does
    not run or does not see all its peers, or peers that are configured differently, cut hosts off from it.

Why it matters to training
    NCCL finds a domain that spans hosts and uses it: when the daemon is not up, it stops with an error at the start. When a
    host is in another clique, traffic to it takes the network, a tenth as fast.

How we tell
    A domain is there where nvidia-smi tells a cluster UUID that is not all zeros (fabric.clusterUuid and fabric.cliqueId);
    elsewhere, on one HGX host for instance, there is nothing to ask and the check is skipped. There the service nvidia-imex
    must be active, device nodes of IMEX channels must exist, and `nvidia-imex-ctl -N` must say UP; a domain that is not UP
    or a peer that is not READY warns, though idle nodes may be so until the first job, where a scheduler starts the daemon
    for each job. GPUs of one host in several cliques warn. Across hosts cluster, clique and the list of peers must be the
    same.

What to do
    Give all hosts of the domain the same /etc/nvidia-imex/nodes_config.cfg and start the service on each. Pass
    /dev/nvidia-caps-imex-channels into the container. To do without: NCCL_MNNVL_ENABLE=0. Hosts in several racks: give each
    run hosts of one clique, or accept the finding.

How to undo
    `systemctl disable --now nvidia-imex`; remove the variable.

Sources
    https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/cmdservice.html
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    https://github.com/NVIDIA/DCGM/issues/308
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.fabric import Fabric
    from hostsetup.facts.imex import Imex
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.services import Services

ID = "gpu.imex"
SOURCE = "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/cmdservice.html"

WANTED = "nvidia-imex active, its channels there, every peer READY and the domain UP"
_REMEDY = Remedy(
    "Give all hosts of the domain the same nodes_config.cfg and start the service on each; or set NCCL_MNNVL_ENABLE=0.",
    ("sudo systemctl enable --now nvidia-imex", "nvidia-imex-ctl -N", "cat /etc/nvidia-imex/nodes_config.cfg"),
    needs_root=True,
)
_SPREAD = Remedy("Give each run hosts of one clique, or accept the finding: --accept gpu.imex=REASON.")


def skip(pci: Pci | None = None, fabric: Fabric | None = None) -> str:
    """Spare hosts without NVIDIA GPUs, and those whose NVLink ends at the host."""
    if pci is not None and (absent := nvidia.absent(pci)):
        return absent
    alone = fabric is not None and fabric.gpus is not None and not fabric.domains
    return "no NVLink domain beyond this host" if alone else ""


def judge(fabric: Fabric, imex: Imex, services: Services | None = None) -> Iterator[Finding]:
    """Warn where the daemon or its domain is not up."""
    if not fabric.domains:
        yield Finding(State.UNKNOWN, saw="whether the GPUs are part of a domain is not known")
        return
    wrong = list(_wrong(fabric, imex, services))
    if wrong:
        yield Finding(
            State.WARN,
            saw="; ".join(wrong),
            wanted=WANTED,
            remedy=_REMEDY,
            evidence=tuple(f"imex: {node} {state}" for node, state in (imex.nodes or {}).items() if state != "READY")[
                :8
            ]
            or (f"imex: Domain State: {imex.domain or 'not told'}",),
        )
    elif not imex.domain and services is None:
        yield Finding(State.UNKNOWN, saw="neither systemd nor nvidia-imex-ctl tells whether the daemon is up")
    else:
        cluster, clique = fabric.domains[0]
        yield Finding(
            State.PASS, saw=f"domain {cluster}, clique {clique}: {imex.domain or 'state not told'}", wanted=WANTED
        )


def _wrong(fabric: Fabric, imex: Imex, services: Services | None) -> Iterator[str]:
    if len(fabric.domains) > 1:
        yield f"the host's GPUs are in {len(fabric.domains)} cliques"
    if services is not None and not services.active("nvidia-imex") and imex.domain != "UP":
        yield "nvidia-imex is not active" if services.loaded("nvidia-imex") else "nvidia-imex is not installed"
    elif imex.domain and imex.domain != "UP":
        waiting = sum(state != "READY" for state in (imex.nodes or {}).values())
        yield f"the domain is {imex.domain}, {waiting} of {len(imex.nodes or {})} nodes are not READY"
    if not imex.channels:
        yield "no device node of an IMEX channel"


def judge_fleet(fabric: Mapping[str, Fabric], imex: Mapping[str, Imex]) -> Iterator[Finding]:
    """Warn of the hosts in another domain than most, and of peers that are configured differently."""
    domains = {
        host: " and ".join(f"cluster {cluster} clique {clique}" for cluster, clique in one.domains[:4]) or "none"
        for host, one in fabric.items()
    }
    if len(set(domains.values())) > 1:
        yield from uniform(domains, "NVLink domain", remedy=_SPREAD, probe="nvidia-smi-fabric")
    for domain in sorted(set(domains.values())):
        peers = {host: imex[host].peers for host, one in domains.items() if one == domain and imex[host].peers}
        if len(set(peers.values())) > 1:
            told = {
                host: f"{len(some)} ({', '.join(some[:4])}{', ...' * (len(some) > 4)})" for host, some in peers.items()
            }
            yield from uniform(told, "peers in nodes_config.cfg", remedy=_REMEDY, probe="imex")
