"""Settings of NCCL lie on the host and change every run, some of them for the worse.

What it means
    /etc/nccl.conf, a user's ~/.nccl.conf, /etc/environment, a shell's start-up file or the environment of the SSH session
    sets variables of NCCL, Gloo, UCX or libfabric, and one of them switches something off, is of the wrong form, or
    matches nothing on this host.

Why it matters to training
    Such settings outlive the fault they were made for. NCCL_P2P_DISABLE=1, a popular answer to hangs, switches NVLink off
    as well; NCCL_IB_DISABLE=1 turns off RoCE, too; a name list that matches nothing ends the run at once. Hosts with
    different settings choose different algorithms and hang.

How we tell
    Only lines that set such a variable are read. Of several, the environment wins over the user's file (or the one that
    NCCL_CONF_FILE names), and that over the system's. Variables in a shell's file reach a run only when it is started by
    such a shell, and a container sees none of them unless they are passed; /etc/nccl.conf is not in the container either.
    We judge by NCCL's grammar: lists match by prefix, so mlx5_1 also takes mlx5_10 to mlx5_19; `^` (all but) and `=`
    (exact) hold for the whole list; ^docker0 alone lets loopback in. Gloo knows exact names and commas only. Settings of a
    cloud image (NCCL_TOPO_FILE, NCCL_NET_PLUGIN, FI_ variables) are there for a reason and only told.

What to do
    Remove what nobody remembers the reason for. Instead of NCCL_P2P_DISABLE use NCCL_P2P_LEVEL=NVL, which keeps NVLink,
    until the cause is found (pcie.acs.redirect). Give the settings of a run with the run: `--env`, `--preset`.

How to undo
    Put the line back; the finding shows it.

Sources
    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    https://github.com/NVIDIA/nccl/blob/master/src/misc/param.cc
    https://docs.pytorch.org/docs/stable/distributed.html#common-environment-variables
    https://github.com/horovod/horovod/issues/700
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.facts.nccl_names import matches
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostsetup.facts.nccl_conf import NcclConf, Setting
    from hostsetup.facts.net import Net
    from hostsetup.facts.rdma_port import Rdma

ID = "net.nccl_conf"
SOURCE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"

# What one value of one variable does, whatever the host.
_HARMFUL: Mapping[str, tuple[str, str]] = {
    "NCCL_P2P_DISABLE": ("1", "switches off direct copies between GPUs, NVLink included"),
    "NCCL_P2P_LEVEL": ("0|LOC", "switches off direct copies between GPUs, NVLink included"),
    "NCCL_SHM_DISABLE": ("1", "sends what could go through shared memory over the network"),
    "NCCL_NET_GDR_LEVEL": ("0|LOC", "switches GPUDirect RDMA off"),
    "NCCL_DMABUF_ENABLE": ("0", "switches dma-buf off: only a peer-memory module is left for GPUDirect RDMA"),
    "NCCL_IGNORE_DISABLED_P2P": ("1", "hides a fault of NVLink"),
    "NCCL_DEBUG": ("TRACE", "writes a line for nearly every call"),
    "NCCL_CHECKS_DISABLE": ("1", "switches off the check of arguments"),
}
_PER_HOST = re.compile(r".*(IFNAME|HCA|NET_DEVICES|TOPO_FILE|GRAPH_FILE|DEBUG_FILE)")
_MOST_SOCKETS = 64
_SHOWN = 12


def judge(nccl_conf: NcclConf, net: Net | None = None, rdma: Rdma | None = None) -> Iterator[Finding]:
    """Warn of settings that harm; tell the others."""
    effective = nccl_conf.effective
    rules: tuple[Callable[[], Iterator[tuple[str, str]]], ...] = (
        lambda: _harmful(effective),
        lambda: _ill_formed(effective),
        lambda: _of_interfaces(effective, net),
        lambda: _of_devices(effective, rdma),
        lambda: _of_sockets(effective),
    )
    bad: dict[str, str] = {}
    for rule in rules:
        for name, why in rule():
            bad.setdefault(name, why)
    for name, why in bad.items():
        setting = effective[name]
        yield Finding(
            State.WARN,
            saw=f"{name}={setting.value} {why}",
            wanted=f"{name} not set, or set for a reason that still holds",
            subject=name,
            remedy=Remedy(f"Take {name} out of {setting.place}.", needs_root=setting.place.startswith("/etc/")),
            evidence=(f"nccl-conf: {setting.place}: {name}={setting.value}",),
        )
    told = [f"{name}={setting.value} ({setting.place})" for name, setting in effective.items() if name not in bad]
    if told:
        more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
        yield Finding(State.INFO, saw=f"set on this host: {', '.join(told[:_SHOWN])}{more}")
    elif not bad:
        yield Finding(State.PASS, saw="no setting of NCCL or its companions lies on the host")


def judge_fleet(nccl_conf: Mapping[str, NcclConf]) -> Iterator[Finding]:
    """Warn of settings that are not the same on every host, names of interfaces and devices apart."""
    names = sorted({name for conf in nccl_conf.values() for name in conf.effective if not _PER_HOST.match(name)})
    for name in names[:_SHOWN]:
        values = {host: conf.value(name) or "not set" for host, conf in nccl_conf.items()}
        if len(set(values.values())) > 1:
            remedy = Remedy("Set it on all hosts or on none; best give it with the run (--env).")
            yield from uniform(values, name, remedy=remedy, probe="nccl-conf")


def _harmful(effective: Mapping[str, Setting]) -> Iterator[tuple[str, str]]:
    for name, (values, why) in _HARMFUL.items():
        if name in effective and re.fullmatch(values, effective[name].value.upper()):
            yield name, why


def _ill_formed(effective: Mapping[str, Setting]) -> Iterator[tuple[str, str]]:
    for name, setting in effective.items():
        if not name.endswith("IFNAME") and name != "NCCL_IB_HCA":
            continue
        if re.search(r"\s", setting.value):
            yield name, "holds a blank: lists have commas alone"
        elif name.startswith(("GLOO", "TP_")) and re.search(r"[\^=]", setting.value):
            yield name, "is of NCCL's grammar: this library knows exact names and commas only"


def _of_interfaces(effective: Mapping[str, Setting], net: Net | None) -> Iterator[tuple[str, str]]:
    if net is None:
        return
    running = [one for one in net.interfaces if one.running]
    if (setting := effective.get("NCCL_SOCKET_IFNAME")) and len(setting.value) > 1:
        chosen = [one for one in running if one.addresses and matches(setting.value, one.name)]
        if not chosen:
            yield setting.name, "matches no running interface with an address: a run ends at once"
        elif any(one.kind == "loopback" for one in chosen):
            yield setting.name, "lets NCCL take loopback"
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        wanted = [part for part in effective[name].value.split(",") if part] if name in effective else []
        absent = [part for part in wanted if part not in {one.name for one in running}]
        if absent:
            yield name, f"names {', '.join(absent)}, which is not running here"


def _of_devices(effective: Mapping[str, Setting], rdma: Rdma | None) -> Iterator[tuple[str, str]]:
    if rdma is None:
        return
    active = sorted({port.device for port in rdma.ports if port.active})
    setting = effective.get("NCCL_IB_DISABLE")
    if setting is not None and setting.value == "1" and active:
        yield setting.name, f"switches off InfiniBand and RoCE, and {len(active)} devices are active"
    setting = effective.get("NCCL_IB_HCA")
    if setting is None or not rdma.ports:
        return
    chosen = [device for device in active if matches(setting.value, device)]
    entries = [entry.partition(":")[0] for entry in setting.value.lstrip("^").split(",")]
    if not chosen:
        yield setting.name, "matches no active RDMA device: the data goes over TCP"
    elif "=" not in setting.value[:2]:
        by_accident = [
            device
            for device in active
            if device not in entries and any(entry[-1:].isdigit() and device.startswith(entry) for entry in entries)
        ]
        if by_accident:
            yield setting.name, f"also means {', '.join(by_accident[:_SHOWN])}, for lists match by prefix; write `=`"


def _of_sockets(effective: Mapping[str, Setting]) -> Iterator[tuple[str, str]]:
    values = [effective[name].value for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD") if name in effective]
    numbers = [int(value) for value in values if re.fullmatch(r"\d{1,4}", value, re.ASCII)]
    if len(numbers) == 2 and numbers[0] * numbers[1] > _MOST_SOCKETS:
        yield (
            "NCCL_NSOCKS_PERTHREAD",
            f"times NCCL_SOCKET_NTHREADS is {numbers[0] * numbers[1]}: more than 64 are not allowed",
        )
