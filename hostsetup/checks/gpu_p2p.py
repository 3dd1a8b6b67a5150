"""The driver does not permit direct copies between GPUs that could make them, or permits what does not work.

What it means
    CUDA may not copy from one GPU's memory to the other's without a detour through host memory: the GPU, the chipset or
    the topology does not support it, or a registry key of the driver switched it off.

Why it matters to training
    NCCL then goes through shared memory in the host: slower by a factor on PCIe, and in need of a large /dev/shm and of
    `--ipc=host` in containers. Between GPUs that are joined by NVLink it refuses to start at all.

How we tell
    `nvidia-smi topo -p2p r` says for each pair OK, CNS (chipset), GNS (GPU), TNS (topology), NS (not supported), DR
    (disabled by a registry key) or U (unknown). A pair that is joined by NVLink and not OK fails. A pair on PCIe that is
    not OK warns on data-centre and workstation cards; on GeForce it is the way they are sold, and in a virtual machine the
    way it is made, so there it is only told. Where the model is not known, too.
    OK is a permission and no proof: old drivers (before 525.105) said OK of GeForce RTX 40 cards and then hung, which
    warns; a GeForce of the RTX 40 or 50 series that says OK on a newer driver has a patched module, which is told. Whether
    the data arrives right, only a copy that is checked can show (`--active`); ACS and the IOMMU are asked by
    pcie.acs.redirect and iommu.mode. Hosts whose pairs differ from those of most are named.

What to do
    Look for the cause that the code names: DR is `NVreg_RegistryDwords` in /etc/modprobe.d; CNS and TNS are slots, sockets
    and firmware; on NVLink pairs see gpu.nvlink and gpu.fabric. GeForce: nothing to repair; give containers a large
    /dev/shm, and set NCCL_P2P_DISABLE=1 where a driver lies.

How to undo
    Remove the variable, or put the registry key back.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://github.com/NVIDIA/nccl-tests/issues/117
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.facts import nvidia
from hostsetup.facts.p2p import MEANINGS
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.driver import Driver
    from hostsetup.facts.gpus import Gpu
    from hostsetup.facts.p2p import P2p
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.topology import Topology

ID = "gpu.p2p"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"

_NO_P2P = re.compile(r"\bRTX (?:40|50)\d\d\b")
_HONEST = (525, 105)
_SHM = "NCCL goes through shared memory: containers need a large /dev/shm and --ipc=host"
_LINKED = Remedy(
    "Read the links (`nvidia-smi nvlink -s`) and the fabric, and look for a registry key of the driver that switches "
    "peer-to-peer off.",
    ("nvidia-smi nvlink -s", "grep -rs NVreg_RegistryDwords /etc/modprobe.d"),
)
_PCIE = Remedy(
    "Look for the cause that the code names: a registry key of the driver (DR), the slots and sockets of the cards (CNS, "
    "TNS). Until then give containers a large /dev/shm.",
    ("grep -rs NVreg_RegistryDwords /etc/modprobe.d", "nvidia-smi topo -m"),
)
_LIES = Remedy("Install a newer driver, or set NCCL_P2P_DISABLE=1 for runs on this host.")


def skip(pci: Pci) -> str:
    """Spare hosts without NVIDIA GPUs."""
    return nvidia.absent(pci)


def judge(
    p2p: P2p,
    topology: Topology | None = None,
    gpus: tuple[Gpu, ...] = (),
    driver: Driver | None = None,
    cpu: Cpu | None = None,
) -> Iterator[Finding]:
    """Fail between NVLinked GPUs, warn between others that should be able to, tell the rest."""
    if len(p2p.gpus) < 2:
        yield Finding(State.PASS, saw="one GPU")
        return
    names = {gpu.index: gpu.name for gpu in gpus}
    linked = {pair for pair, link in (topology.links if topology else {}).items() if link.startswith("NV")}
    closed = {pair: code for pair, code in p2p.codes.items() if code != "OK"}
    cut = {pair: code for pair, code in closed.items() if pair in linked}
    if cut:
        yield _closed(State.FAIL, cut, "joined by NVLink", _LINKED)
    told: dict[str, dict[tuple[int, int], str]] = {}
    for pair, code in closed.items():
        if pair not in linked:
            told.setdefault(_excuse(pair, names, cpu), {})[pair] = code
    for excuse, pairs in told.items():
        if excuse:
            yield _closed(State.INFO, pairs, excuse, None)
        else:
            yield _closed(State.WARN, pairs, "on PCIe", _PCIE)
    yield from _open(p2p, names, driver, len(p2p.codes) - len(closed))


def _closed(state: State, pairs: Mapping[tuple[int, int], str], where: str, remedy: Remedy | None) -> Finding:
    counts = Counter(pairs.values())
    why = "; ".join(f"{count} {code} ({_means(code)})" for code, count in counts.most_common(4))
    first = next(iter(pairs))
    named = " ".join(f"{a}-{b}" for a, b in list(pairs)[:16])
    end = "" if state is State.FAIL else f". {_SHM}"
    return Finding(
        state,
        saw=f"no direct copies between {len(pairs)} pair{'s' * (len(pairs) > 1)} of GPUs, {where}: {why}{end}",
        wanted="OK between all pairs" if remedy else "",
        subject=f"GPU {first[0]} <-> GPU {first[1]}" if len(pairs) == 1 else "",
        remedy=remedy,
        evidence=(f"nvidia-smi-topo-p2p: not OK: {named}{' ...' if len(pairs) > 16 else ''}",),
        scope="pair",
    )


def _means(code: str) -> str:
    return " one way, ".join(MEANINGS.get(one, "not documented") for one in code.split("/"))


def _excuse(pair: tuple[int, int], names: Mapping[int, str], cpu: Cpu | None) -> str:
    mine = [names.get(gpu, "") for gpu in pair]
    if any(map(nvidia.is_consumer, mine)):
        return f"by design of {nvidia.model(next(filter(nvidia.is_consumer, mine)))}"
    if cpu is not None and cpu.hypervisor:
        return f"in a virtual machine ({cpu.hypervisor})"
    return "" if all(mine) else "of a model that is not known"


def _open(p2p: P2p, names: Mapping[int, str], driver: Driver | None, count: int) -> Iterator[Finding]:
    if not count:
        return
    permitted = sorted({gpu for pair, code in p2p.codes.items() if code == "OK" for gpu in pair})
    odd = [gpu for gpu in permitted if nvidia.is_consumer(names.get(gpu, "")) and _NO_P2P.search(names[gpu])]
    evidence = tuple(f"nvidia-smi-topo-p2p: OK at GPU {gpu} ({names[gpu]})" for gpu in odd[:4])
    version = driver.loaded if driver else ""
    if odd and version and nvidia.numbers(version) < _HONEST:
        saw = f"driver {version} says OK of {nvidia.model(names[odd[0]])}, and copies between these cards hang"
        yield Finding(State.WARN, saw, "a driver that tells the truth: 525.105 or newer", "", _LIES, evidence)
    elif odd:
        saw = f"OK of {nvidia.model(names[odd[0]])}, which is sold without: a patched module; only a checked copy proves it"
        yield Finding(State.INFO, saw=saw, evidence=evidence)
    elif count == len(p2p.codes):
        yield Finding(
            State.PASS, saw=f"the driver permits direct copies between all {count} pairs; only a copy proves them"
        )


def judge_fleet(p2p: Mapping[str, P2p]) -> Iterator[Finding]:
    """Warn of the hosts whose pairs are not those of most hosts with as many GPUs."""
    for gpus in sorted({len(one.gpus) for one in p2p.values()}):
        told = {host: _shape(one) for host, one in p2p.items() if len(one.gpus) == gpus > 1}
        if len(set(told.values())) > 1:
            remedy = Remedy(
                "Compare driver, its options in /etc/modprobe.d, firmware and slots with those of the peers."
            )
            yield from uniform(told, f"direct copies among {gpus} GPUs", remedy=remedy, probe="nvidia-smi-topo-p2p")


def _shape(p2p: P2p) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(Counter(p2p.codes.values()).items()))
