"""NVIDIA's driver logged an error of a GPU (an Xid) since the host booted.

What it means
    The driver reports each error of a GPU by a number, its Xid, in the kernel log. Some tell of broken hardware, some of
    firmware that must be started anew, many of a faulty program. A GPU that fell off the bus no longer answers over PCIe;
    the driver may say so without any number.

Why it matters to training
    A GPU with such an error stops the collective that it takes part in, and with it every rank of the run, at once or
    some hours later. After several of them it computes on only when it is reset or the host is rebooted.

How we tell
    The kernel log of this boot, from the journal or from dmesg; lines before the last boot in it do not count. Repeats
    are counted, with their first and last time, and all that concerns one GPU is one finding. `SXid` is an NVSwitch's
    error and belongs to gpu.sxid.

        fails   54 power cable; 79 and "fallen off the bus"; 151, 168 restart; 62, 110, 119, 120, 143, 158, 169 firmware,
                initialisation, fatal timeout; 48, 95, 140 memory; 64 remapping failed; 74, 136, 144-150, 155 NVLink when
                the line says Fatal or when repeated; 109 context switch timeout when repeated; 154 when it asks for a
                reset or a reboot
        warns   94 contained memory error; 156, 157 retirement; 125 InfoROM; 137; 165; NVLink errors, 109 and 154
                otherwise; every number without a class here
        info    13, 31, 43, 45, 68, 69: most often the program (a warning when several programs fail on one GPU and on no
                other); 63; 92, 121, 126-129 unless repeated; 160-164

    Published lists disagree about 63, 68, 69, 74, 92 and 109; there repetition decides. What the driver itself asks for
    outranks the number: where it wants no recovery of the GPU any more (gpu.recovery_action, or a later Xid 154), an
    error that a reset cures is a warning about the past. A log that does not reach back to the boot has forgotten its
    first lines: no Xid in it is weak evidence, and we say so.

What to do
    As the class says: for software, run the program under compute-sanitizer; for firmware, memory and NVLink, end the
    jobs and reset the GPU (on machines with NVSwitches all GPUs together), on A100 reboot after 64 and 95; for a GPU off
    the bus, power-cycle the host, then look at power cables, seating and the PCIe slot. What comes back after that is
    hardware: let the vendor replace it.

How to undo
    Nothing was changed.

Sources
    https://docs.nvidia.com/deploy/xid-errors/
    https://docs.nvidia.com/health-validation/reference/checks/xid.md
    https://github.com/aws-samples/awsome-distributed-training/tree/main/4.validation_and_observability/2.gpu-cluster-healthcheck
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.gpu_fields import no_gpus
from hostsetup.facts.xid import SOURCE as LOG
from hostsetup.facts.xid_table import Kind, kind_of, meaning
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostsetup.expect import Expect
    from hostsetup.facts.gpu_fields import Gpus
    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.xid import Event, XidLog

ID = "gpu.xid"
SOURCE = "https://docs.nvidia.com/deploy/xid-errors/"
EXPECTS = {"gpu.xid.repeats": Want(int, "how many of one error of one GPU make it a lasting one", 3)}

_WANTED = "no Xid since boot"
_SHOWN = 6
_MAX_SUBJECTS = 64
_PROGRAMS = 3

_FIXED = {
    Kind.CABLE: State.FAIL,
    Kind.LOST: State.FAIL,
    Kind.RESTART: State.FAIL,
    Kind.FIRMWARE: State.FAIL,
    Kind.MEMORY: State.FAIL,
    Kind.REMAP_FAILED: State.FAIL,
    Kind.REMAPPED: State.INFO,
    Kind.RETIREMENT_NOTE: State.INFO,
    Kind.SMOOTHING: State.INFO,
}
_REPEATED = {  # once, and again and again
    Kind.NVLINK: (State.WARN, State.FAIL),
    Kind.SWITCH_TIMEOUT: (State.WARN, State.FAIL),
    Kind.RATE: (State.INFO, State.WARN),
}
_CURED_BY_RESET = {Kind.FIRMWARE, Kind.MEMORY, Kind.NVLINK, Kind.SWITCH_TIMEOUT, Kind.RECOVERY}
_ORDER = (State.FAIL, State.WARN, State.INFO)


def skip(pci: Pci | None = None, xid: XidLog | None = None) -> str:
    """Spare a host without GPUs, unless its log speaks of one."""
    return "" if xid is not None and xid.events else no_gpus(pci, None)


def judge(xid: XidLog, expect: Expect, gpu_repair: Gpus | None = None) -> Iterator[Finding]:
    """Report each GPU once, by its gravest Xid."""
    if not xid.events:
        yield Finding(State.PASS, saw=_nothing(xid), wanted=_WANTED)
        return
    judged = [
        (_state(event, xid.events, expect.whole("gpu.xid.repeats") or 3, gpu_repair), event) for event in xid.events
    ]
    by_gpu: dict[str, list[tuple[State, Event]]] = defaultdict(list)
    for state, event in judged:
        by_gpu[event.address].append((state, event))
    for address, found in list(by_gpu.items())[:_MAX_SUBJECTS]:
        found.sort(key=lambda pair: _ORDER.index(pair[0]))
        yield _finding(address, found, xid, gpu_repair)


def _nothing(xid: XidLog) -> str:
    lines = f"no Xid in {xid.lines} lines of the kernel log"
    return f"{lines}, from boot on" if xid.whole else f"{lines}, which does not reach back to the boot: weak evidence"


def _state(event: Event, events: Sequence[Event], repeats: int, gpu_repair: Gpus | None) -> State:
    kind = Kind.LOST if event.number is None else kind_of(event.number)
    state = _by_kind(event, kind, events, repeats)
    if state is State.FAIL and kind in _CURED_BY_RESET and _recovered(event, events, gpu_repair):
        return State.WARN
    return state


def _by_kind(event: Event, kind: Kind, events: Sequence[Event], repeats: int) -> State:
    if kind in _FIXED:
        return _FIXED[kind]
    if kind in _REPEATED:
        once, often = _REPEATED[kind]
        return State.FAIL if event.fatal else often if event.count >= repeats else once
    if kind is Kind.RECOVERY:
        return _by_action(event.action.lower())
    if kind is Kind.DETAIL:
        with_it = any(one.number == 48 and one.address == event.address for one in events)
        return State.INFO if with_it else State.WARN
    if kind is Kind.SOFTWARE:
        alone = all(one.address == event.address for one in events if one.number == event.number)
        return State.WARN if alone and len(event.pids) >= _PROGRAMS else State.INFO
    return State.WARN


def _by_action(action: str) -> State:
    if action.startswith("none"):
        return State.INFO
    drain_only = "drain" in action and "reset" not in action and "reboot" not in action
    return State.WARN if drain_only or not action else State.FAIL


def _recovered(event: Event, events: Sequence[Event], gpu_repair: Gpus | None) -> bool:
    """Whether the driver, asked now or by its last word in the log, wants no recovery of the GPU."""
    gpu = gpu_repair.at(event.address) if gpu_repair else None
    asked = (gpu.value("gpu_recovery_action") if gpu else None) or ""
    if asked:
        return asked.lower() == "none"
    words = [one for one in events if one.address == event.address and one.action]
    last = max(words, key=lambda one: one.until, default=None)
    return last is not None and last.action.lower().startswith("none") and last.until > event.until


def _finding(address: str, found: Sequence[tuple[State, Event]], xid: XidLog, gpu_repair: Gpus | None) -> Finding:
    worst, gravest = found[0]
    gpu = gpu_repair.at(address) if gpu_repair else None
    more = f"; and {len(found) - _SHOWN} other errors" if len(found) > _SHOWN else ""
    past = worst is State.WARN and _recovered(gravest, xid.events, gpu_repair)
    note = "; the driver asks for no recovery of this GPU now" if past else ""
    return Finding(
        worst,
        saw="; ".join(_told(event) for _, event in found[:_SHOWN]) + more + note,
        wanted=_WANTED,
        subject=gpu.subject if gpu else address,
        remedy=None if worst is State.INFO else _remedy(gravest, address),
        evidence=tuple(f"{LOG}: {event.line}" for _, event in found[:_SHOWN]),
        scope="gpu",
    )


def _told(event: Event) -> str:
    name = "the GPU has fallen off the bus" if event.number is None else f"Xid {event.number} ({meaning(event.number)})"
    if event.fatal is not None:
        name += ", fatal" if event.fatal else ", not fatal"
    if event.links:
        name += f", link {', '.join(sorted(event.links, key=int))}"
    if event.action:
        name += f": {event.action}"
    if not event.first:
        return f"{name}, {_times(event.count)}"
    if event.first == event.last:
        return f"{name}, {_times(event.count)}, at {event.first}"
    return f"{name}, {_times(event.count)}, first at {event.first}, last at {event.last}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


_RESET = "End the jobs on the GPU and reset it; where there are NVSwitches, reset all GPUs together."


def _remedy(event: Event, address: str) -> Remedy:
    kind = Kind.LOST if event.number is None else kind_of(event.number)
    reset = (f"sudo nvidia-smi --gpu-reset -i {address}",) if address else ()
    match kind:
        case Kind.CABLE:
            return Remedy(
                "Take the host out; connect the auxiliary power cable of the GPU.", needs_root=True, needs_reboot=True
            )
        case Kind.LOST:
            text = "Power-cycle the host; if it returns, check power cables, seating and slot, then replace the GPU."
            return Remedy(text, needs_root=True, needs_reboot=True)
        case Kind.RESTART:
            return Remedy(
                "Restart the host (or the virtual machine), then test again.", needs_root=True, needs_reboot=True
            )
        case Kind.SOFTWARE:
            text = "Run the programs under compute-sanitizer; if sound ones fail on this GPU alone, have it tested."
            return Remedy(text)
        case Kind.INFOROM:
            return Remedy("Compare gpu.firmware; ask the vendor's support.")
        case Kind.REMAP_FAILED:
            text = f"{_RESET} On A100 reboot. If gpu.row_remap still fails, have the GPU replaced."
            return Remedy(text, reset, needs_root=True)
        case Kind.RECOVERY if event.action:
            action = event.action.lower()
            reboot = "reboot" in action
            return Remedy(
                f"The driver recommends: {event.action}. Another Xid of this GPU says why.",
                reset if "reset" in action and not reboot else (),
                needs_root=True,
                needs_reboot=reboot,
            )
        case Kind.OTHER:
            return Remedy(f"Look the number up in NVIDIA's list of Xids: {SOURCE}")
        case Kind.SMOOTHING_WORN | Kind.RATE | Kind.CONSEQUENCE:
            return Remedy("Watch whether it returns; look for another Xid at the same time.")
        case _:
            return Remedy(f"{_RESET} If it returns, have the GPU replaced.", reset, needs_root=True)
