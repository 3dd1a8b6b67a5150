"""An NVSwitch reported an error (an SXid) since the host booted.

What it means
    On HGX and DGX machines with NVSwitches the driver writes the switches' errors to the kernel log as `SXid`, with a
    number, the word Fatal or Non-fatal, and the NVLink concerned.

Why it matters to training
    All traffic between the GPUs of such a machine goes through the switches. A fatal error stops the collectives of every
    GPU behind it until GPUs and switches are reset together; errors that are not fatal and come back tell of a link that
    will fail.

How we tell
    The kernel log of this boot. Each error takes up to three lines; they count once for each line that carries the
    severity. `Severity 0` means not fatal where the word is missing. A number of SXids is no Xid: gpu.xid does not count
    them. A log that does not reach back to the boot proves little by what it lacks, and we say so. Machines whose switches
    are no PCI devices of the host (rack-scale NVLink, virtual machines) are not judged.

What to do
    Fatal: end all jobs, reset all GPUs and switches together, restart the fabric manager; else reboot. What comes back is
    hardware. Not fatal: watch whether it returns; a site that knows a number to be harmless lists it as
    `gpu.sxid.ignore`.

How to undo
    Nothing was changed.

Sources
    https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html
    https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.sxid import SOURCE as LOG
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.sxid import SwitchEvent, SxidLog

ID = "gpu.sxid"
SOURCE = "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html"
EXPECTS = {"gpu.sxid.ignore": Want(int, "numbers of SXids that are harmless here unless they are fatal", many=True)}

_MAX_FINDINGS = 64
_LINKS = 8
_FATAL = Remedy(
    "End all jobs, reset all GPUs and NVSwitches together, restart the fabric manager; if that is refused, reboot.",
    ("sudo nvidia-smi --gpu-reset", "sudo systemctl restart nvidia-fabricmanager"),
    needs_root=True,
)
_WATCH = Remedy("Watch whether it returns; if it does, reset GPUs and switches, then have the link's hardware checked.")


def skip(pci: Pci | None = None, sxid: SxidLog | None = None) -> str:
    """Spare machines without NVSwitches, unless the log speaks of one."""
    if pci is None or (sxid is not None and sxid.events):
        return ""
    return "" if any(one.is_nvswitch for one in pci.functions.values()) else "no NVSwitch among the PCI devices"


def judge(sxid: SxidLog, expect: Expect) -> Iterator[Finding]:
    """Fail fatal errors, warn of the others."""
    if not sxid.events:
        weak = "" if sxid.whole else ", which does not reach back to the boot: weak evidence"
        yield Finding(
            State.PASS, saw=f"no SXid in {sxid.lines} lines of the kernel log{weak}", wanted="no SXid since boot"
        )
        return
    harmless = set(expect.several("gpu.sxid.ignore"))
    for event in sxid.events[:_MAX_FINDINGS]:
        state = State.FAIL if event.fatal else State.INFO if event.number in harmless else State.WARN
        yield Finding(
            state,
            saw=_told(event) + (" (harmless here, says the site)" if state is State.INFO else ""),
            wanted="no SXid since boot",
            subject=f"NVSwitch {event.address}".strip(),
            remedy={State.FAIL: _FATAL, State.WARN: _WATCH}.get(state),
            evidence=(f"{LOG}: {event.line}",),
        )


def _told(event: SwitchEvent) -> str:
    severity = {True: "fatal", False: "not fatal", None: "severity not told"}[event.fatal]
    links = sorted(event.links, key=int)
    more = f" and {len(links) - _LINKS} more" if len(links) > _LINKS else ""
    told = f"SXid {event.number}, {severity}"
    if links:
        told += f", link {', '.join(links[:_LINKS])}{more}"
    times = "once" if event.count <= 1 else f"{event.count} times"
    if not event.first:
        return f"{told}, {times}"
    when = f"at {event.first}" if event.first == event.last else f"first at {event.first}, last at {event.last}"
    return f"{told}, {times}, {when}"
