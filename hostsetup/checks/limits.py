"""The session's limits are too low for training: locked memory, open files or processes.

What it means
    A process that is started from such a session may lock less memory, open fewer files or start fewer processes than a
    training run needs.

Why it matters to training
    RDMA registers memory and the kernel counts that as locked: below the limit verbs calls fail with "Cannot allocate
    memory", and NCCL or UCX give up or fall back to TCP. Every data loader worker, every connection of the store and
    every shard of a dataset takes files; too few end in "Too many open files" hours later. Threads count as processes:
    too few end in "Resource temporarily unavailable".

How we tell
    The limits of the SSH session that asked, and the kernel's own ceilings on processes and open files. Locked memory
    matters on hosts with RDMA NICs, and counts there below 16 GiB; without such NICs it is not judged, and where the NICs
    are not known it is a warning. Open files should be 65536 or more, processes 8192 or more: our judgement. What counts
    is the soft limit, since training programs do not raise it themselves. A container does not inherit any of this: its
    limits come from its engine (`docker.ulimits`), and those of a service from its unit.

What to do
    A file in /etc/security/limits.d, then log in anew; no reboot. A service (slurmd, a systemd unit) wants
    LimitMEMLOCK=infinity and LimitNOFILE in its unit, a container `--ulimit memlock=-1`.

How to undo
    Remove the file and log in anew.

Sources
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    https://github.com/openucx/ucx/issues/8229
    https://github.com/aws-samples/awsome-distributed-training
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.limits import Limit, Limits
    from hostsetup.facts.pci_tree import Pci

ID = "limits"
SOURCE = "https://github.com/openucx/ucx/issues/8229"
EXPECTS = {
    "limits.memlock_gib": Want(float, "how much memory a process may lock, on hosts with RDMA NICs", 16.0),
    "limits.nofile": Want(int, "how many files a process may have open", 65536),
    "limits.nproc": Want(int, "how many processes and threads a user may have", 8192),
}

_KIB_PER_GIB = 1 << 20


def _remedy(item: str, value: str) -> Remedy:
    lines = "".join(f"{who} {kind} {item} {value}\\n" for who in ("*", "root") for kind in ("soft", "hard"))
    return Remedy(
        f"Raise {item} for sessions, log in anew, and see that services and containers have it, too.",
        commands=(f"printf '{lines}' | sudo tee /etc/security/limits.d/90-{item}.conf",),
        needs_root=True,
    )


def judge(limits: Limits, expect: Expect, pci: Pci | None = None) -> Iterator[Finding]:
    """Warn of each limit that is too low, and of the kernel's own ceilings below it."""
    found = tuple(
        filter(None, (_memlock(limits.memlock_kib, expect, pci), _files(limits, expect), _processes(limits, expect)))
    )
    yield from found
    if not found:
        known = {"locked memory KiB": limits.memlock_kib, "open files": limits.nofile, "processes": limits.nproc}
        yield Finding(State.PASS, saw=", ".join(f"{what}: {_told(one.soft)}" for what, one in known.items() if one))


def _memlock(limit: Limit | None, expect: Expect, pci: Pci | None) -> Finding | None:
    rdma = pci is None or bool(pci.rdma_nics)
    if limit is None:
        return Finding(State.UNKNOWN, saw="the limit of locked memory is not known") if rdma else None
    wanted_gib = expect.number("limits.memlock_gib") or 0.0
    if not rdma or limit.soft >= wanted_gib * _KIB_PER_GIB:
        return None
    why = "whether there are RDMA NICs is not known" if pci is None else "and there are RDMA NICs"
    return Finding(
        State.WARN,
        f"max locked memory is {_told(limit.soft)} KiB{_hard(limit)}, {why}",
        f"unlimited, or at least {wanted_gib:g} GiB ({expect.origin('limits.memlock_gib')})",
        "locked memory",
        _remedy("memlock", "unlimited"),
        (f"ulimit: max locked memory (kbytes, -l) {_told(limit.soft)}",),
    )


def _files(limits: Limits, expect: Expect) -> Finding | None:
    wanted = expect.whole("limits.nofile") or 0
    if limits.nofile is None:
        return Finding(State.UNKNOWN, saw="the limit of open files is not known")
    if limits.nofile.soft < wanted:
        saw = f"open files: {_told(limits.nofile.soft)}{_hard(limits.nofile)}"
    elif limits.file_max is not None and limits.file_max < wanted:
        saw = f"open files of the whole host: {limits.file_max} (fs.file-max)"
    else:
        return None
    shown = f"ulimit: open files (-n) {_told(limits.nofile.soft)}, fs.file-max {limits.file_max or 'not known'}"
    wants = f"at least {wanted} ({expect.origin('limits.nofile')})"
    return Finding(State.WARN, saw, wants, "open files", _remedy("nofile", str(max(wanted, 1))), (shown,))


def _processes(limits: Limits, expect: Expect) -> Finding | None:
    wanted = expect.whole("limits.nproc") or 0
    if limits.nproc is None:
        return None
    if limits.nproc.soft < wanted:
        saw = f"processes: {_told(limits.nproc.soft)}{_hard(limits.nproc)}"
    elif limits.pid_max is not None and limits.pid_max < wanted:
        saw = f"processes of the whole host: {limits.pid_max} (kernel.pid_max)"
    else:
        return None
    shown = (
        f"ulimit: max user processes (-u) {_told(limits.nproc.soft)}, kernel.pid_max {limits.pid_max or 'not known'}"
    )
    wants = f"at least {wanted} ({expect.origin('limits.nproc')})"
    return Finding(State.WARN, saw, wants, "processes", _remedy("nproc", str(max(wanted, 1))), (shown,))


def _told(value: float) -> str:
    return "unlimited" if math.isinf(value) else f"{value:.0f}"


def _hard(limit: Limit) -> str:
    raisable = limit.hard is not None and limit.hard > limit.soft
    return f" (a program may raise it to {_told(limit.hard)})" if raisable and limit.hard else ""
