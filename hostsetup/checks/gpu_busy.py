"""Something else uses a GPU.

What it means
    A program computes on the GPU, or its memory is taken although no program is seen.

Why it matters to training
    A run that shares a GPU gets less memory than it counts on and fails with "out of memory" on one rank, or it is slowed
    down with all its peers. Often it is a process that a run before left behind.

How we tell
    The compute processes that nvidia-smi shows, looked up once more in /proc: what ended in between does not count, and
    neither do monitors, the MPS server and the persistence daemon. A process fails the check, or warns where the site
    expects company (`gpu.busy.allow`). More than `gpu.busy.idle_memory_mib` (1024) of used memory without a visible
    process warns: it may belong to a container with its own process numbers, to another user, or to a context that
    leaked. Desktop programs are for information. The GPU's own overhead, and what nvidia-smi hides from this user
    (`[Insufficient Permissions]`, `[Not Found]`), is not taken for zero.

What to do
    Ask its owner to end the job; `ps -o pid,user,etime,args -p PID` shows whose it is. For memory without a process look
    into the containers, and reset the GPU if nothing is left. The audit ends nothing.

How to undo
    Nothing was changed.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://docs.nvidia.com/deploy/mps/index.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.gpu_fields import no_gpus
from hostsetup.facts.gpu_processes import PROBE
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostsetup.expect import Expect
    from hostsetup.facts.gpu_fields import Gpu, Gpus
    from hostsetup.facts.gpu_processes import GpuProcesses, Process
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.busy"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
EXPECTS = {
    "gpu.busy.allow": Want(bool, "whether other programs may use the GPUs: they warn and do not fail", default=False),
    "gpu.busy.idle_memory_mib": Want(int, "how much memory of a GPU may be in use without a visible process", 1024),
}

_SERVANTS = ("nvidia-persiste", "nvidia-cuda-mps", "nv-hostengine", "dcgm", "nvidia-smi", "nvsm")
_DESKTOP = ("xorg", "xwayland", "gnome-", "kwin", "plasmashell", "cinnamon", "weston", "sddm", "gdm")
_WANTED = "no process on the GPUs"
_SHOWN = 5


def skip(pci: Pci | None = None, gpu_processes: GpuProcesses | None = None) -> str:
    """Spare hosts without GPUs."""
    return no_gpus(pci, gpu_processes)


def judge(gpu_processes: GpuProcesses, expect: Expect, gpu_state: Gpus | None = None) -> Iterator[Finding]:
    """Report each GPU that is in use, by its processes or by its memory."""
    addresses = dict.fromkeys(gpu.address for gpu in gpu_state.gpus) if gpu_state else {}
    addresses.update(dict.fromkeys(one.address for one in gpu_processes.processes))
    hidden = {gpu.index: why for gpu, why in gpu_state.read("memory.used").gaps} if gpu_state else {}
    good = 0
    for address in addresses:
        gpu = gpu_state.at(address) if gpu_state else None
        mine = [one for one in gpu_processes.processes if one.address == address and _what(one) != "servant"]
        finding = _by_process(mine, expect) or (_by_memory(gpu, mine, gpu_state, expect) if gpu and gpu_state else None)
        if finding is None and gpu and gpu.index in hidden:
            yield Finding(State.UNKNOWN, hidden[gpu.index], _WANTED, gpu.subject, scope="gpu")
            continue
        if finding is None:
            good += 1
            continue
        state, saw, remedy, evidence = finding
        subject = gpu.subject if gpu else address
        yield Finding(state, saw, _WANTED, subject, remedy, evidence, scope="gpu")
    if good or not addresses:
        seen = f"{good} GPUs are free" if good and gpu_state else "no process on any GPU"
        yield Finding(
            State.PASS, saw=seen if gpu_state else f"{seen}; how much memory is in use is not known", wanted=_WANTED
        )


def _what(process: Process) -> str:
    name = process.name.rpartition("/")[2].lower()
    if name.startswith(_SERVANTS):
        return "servant"
    if name.startswith(_DESKTOP):
        return "desktop"
    return "gone" if process.here is False else "tenant"


def _by_process(mine: Sequence[Process], expect: Expect) -> tuple[State, str, Remedy | None, tuple[str, ...]] | None:
    tenants = [one for one in mine if _what(one) == "tenant"]
    desktop = [one for one in mine if _what(one) == "desktop"]
    shown = tuple(f"{PROBE}: {one.line}" for one in (tenants or desktop)[:_SHOWN])
    if tenants:
        pids = ",".join(str(one.pid) for one in tenants[:_SHOWN] if one.pid is not None)
        remedy = Remedy(
            "Ask the owner to end it; the audit ends nothing.",
            (f"ps -o pid,user,etime,args -p {pids}",) if pids else (),
        )
        return (State.WARN if expect.get("gpu.busy.allow") is True else State.FAIL), _told(tenants), remedy, shown
    if desktop:
        return State.INFO, f"desktop programs: {_told(desktop)}", None, shown
    return None


def _by_memory(
    gpu: Gpu, mine: Sequence[Process], gpu_state: Gpus, expect: Expect
) -> tuple[State, str, Remedy | None, tuple[str, ...]] | None:
    used, limit = gpu.number("memory.used"), expect.whole("gpu.busy.idle_memory_mib")
    if used is None or limit is None or used <= limit:
        return None
    gone = ", ".join(str(one.pid) for one in mine[:_SHOWN])
    elsewhere = f"; nvidia-smi names {gone}, which this host does not have (another PID namespace?)" if gone else ""
    return (
        State.WARN,
        f"{used:.0f} MiB in use and no process to be seen{elsewhere}",
        Remedy("Look into the containers of this host; if nothing runs, reset the GPU.", ("docker ps",)),
        (gpu_state.evidence(gpu, "memory.used", "utilization.gpu"),),
    )


def _told(processes: Sequence[Process]) -> str:
    words = [_process(one) for one in processes[:_SHOWN]]
    more = f", and {len(processes) - _SHOWN} more" if len(processes) > _SHOWN else ""
    return ", ".join(words) + more


def _process(one: Process) -> str:
    name = one.name.rpartition("/")[2][:60] or "a process without a name"
    detail = [f"pid {one.pid}" if one.pid is not None else "pid hidden"]
    if one.uid:
        detail.append(f"uid {one.uid}")
    if one.memory_mib is not None:
        detail.append(f"{one.memory_mib} MiB")
    return f"{name} ({', '.join(detail)})"
