"""Programs on the host cannot open its RDMA devices.

What it means
    The kernel knows an RDMA device, but its file below /dev/infiniband is missing, or the SSH user may not read and write
    it.

Why it matters to training
    NCCL talks to the card through these files, from inside the container. Without them it falls back to TCP sockets and
    says so in a line of its log that nobody reads; a run is then ten times slower and not broken.

How we tell
    Each uverbs entry of sysfs has a file of the same name in /dev/infiniband. Rights are those of the SSH user; a
    container that runs as root can open more, so a lack of rights is a warning and a missing file a failure. The
    libraries that drive a card come from the container's image, not from the host: an ibv_devinfo of the host that finds
    nothing is told, and no more. So is a kernel that gives each network namespace its own devices (`rdma system`
    says exclusive): only containers in the host's network see them then.

What to do
    Missing files: load ib_uverbs and rdma_ucm. Rights: install rdma-core, whose udev rules give everybody access. A
    container needs `--device=/dev/infiniband/...` for each file and unlimited locked memory (`--ulimit memlock=-1`); this
    launcher passes both.

How to undo
    Unload the modules; remove the package.

Sources
    https://docs.kernel.org/infiniband/user_verbs.html
    https://github.com/linux-rdma/rdma-core
    https://man7.org/linux/man-pages/man8/rdma-system.8.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.rdma_port import Rdma

ID = "rdma.userspace"
SOURCE = "https://docs.kernel.org/infiniband/user_verbs.html"


def skip(rdma: Rdma) -> str:
    """Spare hosts where no RDMA port is active."""
    return "" if any(port.active for port in rdma.ports) else "no RDMA port is active"


def judge(rdma: Rdma) -> Iterator[Finding]:
    """Fail on missing files, warn of files that the user may not open."""
    if rdma.nodes is None or rdma.verbs is None:
        yield Finding(State.UNKNOWN, saw="the files in /dev/infiniband were not listed")
        return
    active = sorted({port.device for port in rdma.ports if port.active})
    files = {device: verbs for verbs, device in rdma.verbs.items()}
    missing = [device for device in active if files.get(device) not in rdma.nodes]
    closed = [device for device in active if device not in missing and rdma.nodes[files[device]] != "rw"]
    if missing:
        yield Finding(
            State.FAIL,
            saw=f"no file in /dev/infiniband for {', '.join(missing)}",
            wanted="a uverbs file for each active device",
            subject=", ".join(missing),
            remedy=Remedy(
                "Load the modules of user-space RDMA.", ("sudo modprobe -a ib_uverbs rdma_ucm",), needs_root=True
            ),
            evidence=(f"sysfs-rdma: /dev/infiniband holds {', '.join(rdma.nodes) or 'nothing'}",),
        )
    if closed:
        yield Finding(
            State.WARN,
            saw=f"the SSH user may not open {', '.join(f'{files[device]} ({device})' for device in closed)}",
            wanted="read and write access for the user who trains",
            subject=", ".join(closed),
            remedy=Remedy("Install rdma-core, whose udev rules open the files to everybody.", needs_root=True),
            evidence=tuple(f"sysfs-rdma: node {files[device]} {rdma.nodes[files[device]]}" for device in closed),
        )
    told = list(_told(rdma, active))
    if told:
        yield Finding(State.INFO, saw="; ".join(told))
    if not missing and not closed:
        yield Finding(State.PASS, saw=f"{len(active)} devices can be opened")


def _told(rdma: Rdma, active: list[str]) -> Iterator[str]:
    unseen = [device for device in active if device not in rdma.tool_found] if rdma.tool_found is not None else []
    if unseen:
        yield f"ibv_devinfo of the host does not find {', '.join(unseen)}: the image must bring the card's library"
    if rdma.netns == "exclusive":
        yield "each network namespace has its own RDMA devices: only containers in the host's network see them"
    if "rdma_cm" not in (rdma.nodes or {}):
        yield "/dev/infiniband/rdma_cm is missing: what connects by the RDMA connection manager cannot"
