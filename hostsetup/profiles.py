"""Knows what is to be expected of a platform, by the PCI ids of its GPUs and its CPU. Guesses nothing of one not listed.

The layer between what is built in and what a site says. Every value has a source beside it; a board on which it may
differ (one GPU handed to a virtual machine, GH200, bridge cards) is not listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.facts.pci_tree import NVIDIA
from hostsetup.model import Known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.cpu import Cpu
    from hostsetup.host import HostFacts


@dataclass(frozen=True, slots=True)
class Platform:
    """One kind of GPU: `devices` are its PCI device ids; the links are of each GPU, the rate in GB/s each way."""

    name: str
    devices: frozenset[str]
    links: int
    rate_gbps: float
    nps: tuple[int, ...] = ()  # nodes per socket that such machines with EPYC ship with; empty: no word on it

    def values(self, cpu: Cpu | None) -> dict[str, Value]:
        """Return what is expected, by the names that checks declare."""
        told: dict[str, Value] = {"gpu.nvlink.links": self.links, "gpu.nvlink.rate_gbps": self.rate_gbps}
        if self.nps and cpu is not None and cpu.is_epyc:
            told["numa.nps"] = self.nps
        return told


# Device ids: https://pci-ids.ucw.cz/read/PC/10de, https://github.com/NVIDIA/gpu-admin-tools
# Links and rates: https://github.com/oracle-quickstart/oci-hpc, and of H100 and GB200 also
# https://docs.nvidia.com/health-validation/reference/checks/nvlink. The rates are nominal: drivers print 25 or 26.562 for
# one generation, 50 or 53.125 for the next, and more than is expected is no fault.
PLATFORMS = (
    # NPS4 as DGX A100 ships: https://gist.github.com/v0dro/0559e1d9b205ca9ac0ad1a29fe10377b
    Platform("A100 SXM", frozenset({"20b0", "20b2"}), 12, 25.0, nps=(1, 4)),
    Platform("H100 SXM", frozenset({"2330"}), 18, 25.0),
    Platform("H200 SXM", frozenset({"2335"}), 18, 25.0),
    Platform("B200", frozenset({"2901"}), 18, 50.0),
    Platform("GB200", frozenset({"2941"}), 18, 50.0),
)
BY_DEVICE: Mapping[str, Platform] = {device: one for one in PLATFORMS for device in one.devices}
_FEWEST_GPUS = 2  # a single one may have been handed to a virtual machine without its links


def platform_of(facts: HostFacts) -> Platform | None:
    """Return the platform of a host whose GPUs, two at least, are all of one listed kind."""
    if not isinstance(facts.pci, Known):
        return None
    gpus = facts.pci.value.gpus
    kinds = {BY_DEVICE.get(gpu.device) if gpu.vendor == NVIDIA else None for gpu in gpus}
    return kinds.pop() if len(gpus) >= _FEWEST_GPUS and len(kinds) == 1 else None


def expect_for(facts: HostFacts | None, base: Expect) -> Expect:
    """Return `base` with what the host's platform adds; of the fleet (None) and of other hosts, `base` as it is."""
    platform = platform_of(facts) if facts is not None else None
    if facts is None or platform is None:
        return base
    cpu = facts.cpu.value if isinstance(facts.cpu, Known) else None
    return base.over(platform.values(cpu), f"platform {platform.name}")
