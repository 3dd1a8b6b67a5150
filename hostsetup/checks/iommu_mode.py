"""The IOMMU translates what GPUs and RDMA NICs send to each other.

What it means
    The devices are in an IOMMU domain of type DMA: the addresses that they use are translated for each transfer, instead
    of being passed through (`iommu=pt`).

Why it matters to training
    A GPU that writes to another GPU, or a NIC that writes to a GPU, uses addresses of the bus. Where they are translated,
    such transfers fail, hang at the first collective, or deliver zeros without an error; the kernel logs page faults of
    the IOMMU. Where they work, they are slow.

How we tell
    /sys/bus/pci/devices/*/iommu_group/type, for every GPU and RDMA NIC: `identity` is passed through, `DMA` and `DMA-FQ` are
    translated, no group means that no IOMMU is in the way. That groups exist says nothing: they do in every mode. Where
    the kernel shows no type (before about 4.19) or sysfs was not asked, the boot line and the kernel's log are asked. Page
    faults in the log show translation, too. `amd_iommu=on` is no value that the kernel knows; AMD's IOMMU is on by
    default, Intel's as the kernel was built. It is a failure with RDMA NICs, or with several GPUs that are not all joined by
    NVLink. Virtual machines are not judged: their IOMMU is the host's. Passing through leaves ACS on: see
    pcie.acs.redirect.

What to do
    Boot with `iommu=pt` (Arm: `iommu.passthrough=1`) and audit again. If no virtual machine ever runs here, the IOMMU may
    be switched off in the firmware instead, but not on machines with more than 255 logical CPUs: their interrupts need
    it. Hosts for confidential computing need translation: tell the audit so (`iommu.mode.translated = true`).

How to undo
    Remove the parameter, regenerate, reboot.

Sources
    https://docs.nvidia.com/gpudirect-storage/troubleshooting-guide/installing-gpudirect-storage.html
    https://github.com/NVIDIA/nccl/issues/257
    https://github.com/tinygrad/open-gpu-kernel-modules/issues/18
    https://github.com/ROCm/rccl/issues/1129
    https://docs.kernel.org/admin-guide/kernel-parameters.html
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.cmdline import values
from hostsetup.facts.iommu import OFF, PASS, TRANSLATE
from hostsetup.facts.pci_tree import AMD
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.cmdline import Cmdline
    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.iommu import Iommu
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.topology import Topology

ID = "iommu.mode"
SOURCE = "https://docs.nvidia.com/gpudirect-storage/troubleshooting-guide/installing-gpudirect-storage.html"
EXPECTS = {
    "iommu.mode.translated": Want(
        bool, "the IOMMU may translate, as confidential computing and passthrough need", False
    )
}

WANTED = "GPUs and RDMA NICs passed through, or no IOMMU"
_MOST_APIC = 255  # logical CPUs that interrupts reach without the IOMMU's remapping
_SHOWN = 8


def skip(pci: Pci | None = None, cpu: Cpu | None = None) -> str:
    """Spare virtual machines, and hosts whose tree shows neither GPU nor RDMA NIC."""
    if (cpu is not None and cpu.hypervisor) or (cpu is None and pci is not None and pci.virtual):
        return "a virtual machine: its IOMMU is the host's"
    if pci is not None and not pci.gpus and not pci.loose:
        return "no GPU: nothing here sends to a peer"
    return ""


def judge(
    iommu: Iommu,
    expect: Expect,
    pci: Pci | None = None,
    cmdline: Cmdline | None = None,
    topology: Topology | None = None,
    cpu: Cpu | None = None,
) -> Iterator[Finding]:
    """Say what happens to the devices, and whether that breaks transfers between them."""
    if iommu.active is None and not iommu.default:
        yield _only_asked(cmdline)
        return
    devices = [] if pci is None else [device.address for device in (*pci.gpus, *pci.rdma_nics)]
    modes = {address: iommu.of(address) for address in devices} or {"": OFF if iommu.active is False else iommu.default}
    translated = [address for address, mode in modes.items() if mode == TRANSLATE]
    unknown = [address for address, mode in modes.items() if not mode]
    if translated:
        yield _translated(translated, iommu, pci, topology, cpu, accepted=bool(expect.get("iommu.mode.translated")))
    elif unknown:
        named = ", ".join(filter(None, unknown[:_SHOWN])) or "the devices"
        yield Finding(
            State.UNKNOWN,
            saw=f"what happens to {named} is not shown: this kernel names no type, and neither boot line nor log tells",
            wanted=WANTED,
        )
    else:
        yield from _fine(modes, iommu, pci)


def _fine(modes: dict[str, str], iommu: Iommu, pci: Pci | None) -> Iterator[Finding]:
    counts = Counter(modes.values())
    if counts[PASS]:
        what = f"{counts[PASS]} devices passed through" if pci is not None else "devices are passed through"
        yield Finding(
            State.PASS, saw=f"{what}; ACS may be on all the same", wanted=WANTED, evidence=_lines(iommu, modes)
        )
        asked = iommu.asked and (values(iommu.asked, "iommu") or values(iommu.asked, "iommu.passthrough"))
        if pci is not None and any(gpu.vendor == AMD for gpu in pci.gpus) and not asked:
            yield Finding(
                State.INFO, saw="passed through by the kernel's default; RCCL warns all the same without iommu=pt"
            )
    else:
        yield Finding(State.PASS, saw="no IOMMU is in the devices' way", wanted=WANTED, evidence=_lines(iommu, modes))


def _lines(iommu: Iommu, addresses: dict[str, str] | list[str]) -> tuple[str, ...]:
    lines = [iommu.lines[address] for address in addresses if address in iommu.lines][:4]
    return tuple(lines) or tuple(filter(None, (iommu.lines.get(""),)))


def _translated(
    translated: list[str], iommu: Iommu, pci: Pci | None, topology: Topology | None, cpu: Cpu | None, *, accepted: bool
) -> Finding:
    gpus = len(pci.gpus) if pci else 0
    nics = len(pci.rdma_nics) if pci else 0
    joined = topology is not None and topology.gpus >= gpus and topology.all_nvlink
    harmless = pci is not None and not nics and (gpus < 2 or joined)
    faulty = sorted(
        {found[0] for line in iommu.faults if (found := re.search(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", line))}
    )
    named = ", ".join(filter(None, translated[:_SHOWN]))
    saw = f"the IOMMU translates for {named}" if named else "the IOMMU translates"
    if len(translated) > _SHOWN:
        saw += f" and {len(translated) - _SHOWN} more"
    if faulty:
        saw += f", and refused transfers of {', '.join(faulty[:_SHOWN])}"
    evidence = (*_lines(iommu, translated), *(f"dmesg: {line}" for line in iommu.faults[:3]))
    if accepted:
        return Finding(State.INFO, f"{saw}, as this site expects", evidence=evidence)
    if harmless:
        why = "one GPU and no RDMA NIC" if gpus < 2 else "the GPUs are joined by NVLink, and there is no RDMA NIC"
        return Finding(State.INFO, f"{saw}; {why}: no transfer between devices passes it", WANTED, evidence=evidence)
    state = State.FAIL if pci is not None and not pci.own_acs else State.WARN
    return Finding(state, saw, WANTED, remedy=_remedy(cpu), evidence=evidence)


def _remedy(cpu: Cpu | None) -> Remedy:
    arm = cpu is not None and cpu.architecture == "aarch64"
    parameter = "iommu.passthrough=1" if arm else "iommu=pt"
    many = cpu is not None and _logical(cpu) > _MOST_APIC
    off = (
        f"do not switch the IOMMU off here: more than {_MOST_APIC} logical CPUs need it for their interrupts"
        if many
        else "or switch the IOMMU off in the firmware, if no virtual machines run here"
    )
    return Remedy(
        f"Boot with {parameter}, {'and' if many else 'then'} audit again; {off}.",
        needs_root=True,
        needs_reboot=True,
        needs_firmware=not many,
    )


def _logical(cpu: Cpu) -> int:
    count = 0
    for part in ",".join((cpu.node_cpus or {}).values()).split(","):
        if found := re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part, re.ASCII):
            count += int(found[2] or found[1]) - int(found[1]) + 1
    return count


def _only_asked(cmdline: Cmdline | None) -> Finding:
    """Judge by boot parameters alone, which leave the kernel's own default open."""
    words = cmdline.running if cmdline and cmdline.running is not None else cmdline.configured if cmdline else ()
    on = "on" in [option for value in values(words or (), "intel_iommu") for option in value.split(",")]
    where = "proc-cmdline" if cmdline and cmdline.running is not None else "etc-default-grub"
    if on and "pt" not in values(words or (), "iommu"):
        return Finding(
            State.WARN,
            saw="intel_iommu=on without iommu=pt: the IOMMU translates, unless the kernel was built to pass through",
            wanted=WANTED,
            remedy=_remedy(None),
            evidence=(f"{where}: {' '.join(words or ())[:300]}",),
        )
    return Finding(
        State.UNKNOWN,
        saw="neither sysfs nor the kernel's log was read, and no parameter decides what the IOMMU does",
        wanted=WANTED,
    )
