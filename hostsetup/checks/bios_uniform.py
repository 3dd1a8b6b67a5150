"""Machines of one model run different firmware.

What it means
    Hosts with the same product name (and the same processor) have different BIOS versions, or different microcode.

Why it matters to training
    PCIe access control, NUMA layout, power and link settings are firmware's; versions differ in defaults and in bugs.
    One host with older firmware is often the one that is slower, or the one whose GPUs see each other differently.

How we tell
    The kernel's copy of the firmware's tables (/sys/class/dmi/id, readable by everybody) and the microcode that
    /proc/cpuinfo names. Only machines of one model are compared, by what most of them have. Words that makers leave in
    place of a name (`To Be Filled By O.E.M.`, `Default string`) are no name. A version is compared as it is written:
    which one is newer is the maker's to say. Virtual machines and containers are left out.

What to do
    Bring the firmware of the hosts that differ to the version of the others, from the machine's maker, then compare
    the BIOS settings. Microcode alone also comes with the distribution's package (intel-microcode, amd64-microcode).

How to undo
    Most makers let you write the older version back.

Sources
    https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-firmware-dmi-tables
    https://docs.kernel.org/arch/x86/microcode.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.facts.cpu import Cpu
    from hostsetup.facts.dmi import Dmi
    from hostsetup.facts.virt import Virt

ID = "bios.uniform"
SOURCE = "https://docs.kernel.org/arch/x86/microcode.html"

_BIOS = Remedy(
    "Bring all machines of this model to one firmware version.", needs_root=True, needs_reboot=True, needs_firmware=True
)
_MICROCODE = Remedy(
    "Bring all machines of this model to one microcode: by firmware, or by the distribution's package.",
    needs_root=True,
    needs_reboot=True,
)


def skip(virt: Virt) -> str:
    """Spare what has no firmware of its own."""
    if virt.container:
        return "a container: the firmware is its machine's"
    return f"a virtual machine ({virt.vm}): its firmware is the hypervisor's" if virt.vm else ""


def judge_fleet(dmi: Mapping[str, Dmi], cpu: Mapping[str, Cpu] | None = None) -> Iterator[Finding]:
    """Compare machines of one model."""
    models: dict[tuple[str, str, str], list[str]] = {}
    for host, one in dmi.items():
        processor = cpu[host].model_name if cpu and host in cpu else ""
        models.setdefault((one.vendor, one.product or one.board, processor), []).append(host)
    several = {model: hosts for model, hosts in models.items() if len(hosts) > 1}
    told = 0
    for (vendor, product, _), hosts in several.items():
        name = f"{vendor} {product}".strip()
        for what, values, remedy in (
            ("BIOS", {host: _bios(dmi[host]) for host in hosts}, _BIOS),
            ("microcode", {host: dmi[host].microcode for host in hosts if dmi[host].microcode}, _MICROCODE),
        ):
            if len(values) < 2:
                continue
            for finding in uniform(values, f"{what} of {name}", remedy=remedy, probe="machine-files"):
                if finding.state is not State.PASS:
                    told += 1
                    yield finding
    if not several:
        yield Finding(State.PASS, saw=f"{len(dmi)} hosts, no two of one model", scope="cluster")
    elif not told:
        alone = (
            f", {len(models) - len(several)} machines are alone of their model" if len(models) > len(several) else ""
        )
        counts = ", ".join(f"{len(hosts)} of {product}" for (_, product, _), hosts in list(several.items())[:5])
        yield Finding(State.PASS, saw=f"one firmware a model: {counts}{alone}", scope="cluster")


def _bios(dmi: Dmi) -> str:
    return f"{dmi.bios_version} of {dmi.bios_date}" if dmi.bios_date else dmi.bios_version
