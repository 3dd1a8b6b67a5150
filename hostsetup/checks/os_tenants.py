"""Other software on the host may take its GPUs.

What it means
    A scheduler that starts jobs on this host runs (warning where there are GPUs), or a program that uses or watches GPUs:
    CUDA's MPS, a graphical desktop, DCGM.

Why it matters to training
    A scheduler does not know of a run that was started beside it, and puts a job on the same GPUs: out of memory, or
    half the speed on one rank and therefore on all. MPS changes who may use a GPU. A desktop holds some memory on the
    first GPU. Profilers cannot count while DCGM does.

How we tell
    By systemd's units and by the names of running processes (the kernel keeps their first 15 letters). A host that hides
    other users' processes (hidepid) is seen in part only, which is said. What runs in the container of somebody else is
    seen by its process name alone. Nothing of it is a fault: within an allocation of Slurm its daemon must run.

What to do
    Ask the scheduler for the hosts, or take them out of it for the time of the run (`scontrol update NodeName=HOST
    State=DRAIN Reason=training`, `kubectl cordon HOST`). Stop a desktop: `systemctl isolate multi-user.target`.
    MPS: `echo quit | nvidia-cuda-mps-control`.

How to undo
    `scontrol update NodeName=HOST State=RESUME`; `kubectl uncordon HOST`; `systemctl isolate graphical.target`.

Sources
    https://slurm.schedmd.com/scontrol.html
    https://docs.nvidia.com/deploy/mps/
    https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.pci_tree import Pci
    from hostsetup.facts.programs import Programs
    from hostsetup.facts.services import Services

ID = "os.tenants"
SOURCE = "https://slurm.schedmd.com/scontrol.html"

# what it is: names of units, names of processes
_SCHEDULERS = {
    "Slurm": (("slurmd",), ("slurmd",)),
    "Kubernetes": (("kubelet", "k3s", "k3s-agent"), ("kubelet", "k3s-server", "k3s-agent", "rke2")),
    "Ray": (("ray",), ("raylet", "gcs_server")),
    "PBS": (("pbs",), ("pbs_mom",)),
    "Grid Engine": (("sge",), ("sge_execd",)),
    "LSF": ((), ("sbatchd",)),
    "HTCondor": ((), ("condor_startd",)),
    "Nomad": ((), ("nomad",)),
}
_OTHERS = {
    "CUDA MPS": ((), ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")),
    "a graphical desktop": (("display-manager",), ("Xorg", "gnome-shell", "Xwayland", "gdm-x-session")),
    "DCGM": (("nvidia-dcgm", "dcgm", "nv-hostengine"), ("nv-hostengine", "dcgm-exporter")),
}


def judge(programs: Programs, services: Services | None = None, pci: Pci | None = None) -> Iterator[Finding]:
    """Warn of schedulers, tell of the rest."""
    schedulers, others = _there(_SCHEDULERS, programs, services), _there(_OTHERS, programs, services)
    gpus = len(pci.gpus) if pci is not None else None
    partly = "" if programs.whole else " (processes of other users are hidden)"
    if schedulers:
        names = ", ".join(schedulers)
        yield Finding(
            State.INFO if gpus == 0 else State.WARN,
            saw=f"{names} may start jobs here" + ("" if gpus is None else f"; {gpus} GPUs"),
            wanted="no scheduler that can place jobs on the same GPUs",
            subject=names,
            remedy=Remedy("Ask the scheduler for this host, or drain it for the time of the run."),
            evidence=tuple(f"programs: {said}" for said in schedulers.values()),
        )
    if others:
        saw = f"{', '.join(others)} on this host"
        yield Finding(
            State.INFO,
            saw=saw,
            subject=", ".join(others),
            evidence=tuple(f"programs: {said}" for said in others.values()),
        )
    if not schedulers and not others:
        # of what is hidden nothing can be said
        state = State.PASS if programs.whole else State.UNKNOWN
        yield Finding(state, saw=f"no scheduler, no desktop, no MPS, no DCGM{partly}")


def _there(
    known: dict[str, tuple[tuple[str, ...], tuple[str, ...]]], programs: Programs, services: Services | None
) -> dict[str, str]:
    found: dict[str, str] = {}
    for what, (units, names) in known.items():
        active = services.active(*units) if services is not None else ()
        running = programs.runs(*names)
        if active or running:
            found[what] = f"{', '.join(running)} runs" if running else f"unit {', '.join(active)} is active"
    return found
