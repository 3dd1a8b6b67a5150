"""An RDMA port counts errors, loses its link, or runs other firmware than its like.

What it means
    A port that training uses has lost its link several times, counts symbol or buffer errors, or its card's firmware is
    not that of the other cards of the same board.

Why it matters to training
    A link that drops for a second ends the run: NCCL gives up after a few retries with status 12 and names two hosts, of
    which neither need be the cause. Symbol errors make the link slow before they make it fail. Cards of mixed firmware
    behave differently under congestion, which nobody finds afterwards.

How we tell
    Error counters of the active ports in sysfs, once: they count since the driver was loaded, so a number is compared with
    the time since boot, and what is old cannot be told from what is new. The lines of the kernel's log that a NIC lost
    its link carry times: five in the last 24 hours are flapping, and the first 30 minutes after boot do not count.
    32-bit counters, and some of 8 or 16 bits, stop at their highest value; such a number is told as "at least".
    Ports that are not active are never asked: reading a counter is a command to the card, and restricted functions of
    ConnectX-7 log an error for each. A port whose first counter cannot be read is left alone for the same reason.
    Firmware is compared among cards of one board id, on a host and between hosts. Ports that are normal to see with
    a few errors after a cable was pulled are warnings; accept them: `--accept rdma.health=REASON`.

What to do
    Reseat, then replace the cable and the transceiver, then the port of the switch. Watch the counters:
    `sudo mlxlink -d DEVICE -c`, or `perfquery -x`. Bring all cards of a board to one firmware.

How to undo
    Nothing is changed.

Sources
    https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters
    https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
    https://github.com/leptonai/gpud/issues/1164
    https://github.com/Azure/azurehpc-health-checks
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.rdma_port import training_ports
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostsetup.expect import Expect
    from hostsetup.facts.kernel_log import KernelLog
    from hostsetup.facts.net import Net
    from hostsetup.facts.rdma_port import Port, Rdma

ID = "rdma.health"
SOURCE = "https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters"

EXPECTS = {
    "rdma.health.symbol_errors_per_hour": Want(float, "most symbol errors of a port an hour since boot", 120.0),
    "rdma.health.link_downed": Want(int, "most losses of a port's link since the driver was loaded", 5),
    "rdma.health.flaps_per_day": Want(int, "losses of a link in 24 hours, by the kernel's log, that are a fault", 5),
}

_GRAVE = ("local_link_integrity_errors", "excessive_buffer_overrun_errors")
_SATURATED = {0xFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF}
_DAY_S, _BOOT_GRACE_S, _HOUR_S = 86_400, 1_800, 3_600
_TIME = re.compile(r"\[\s*(\d{1,12}\.\d{1,9})\]", re.ASCII)
_SHOWN = 5
_CABLE = Remedy(
    "Reseat or replace cable and transceiver; watch whether the counter rises.", ("sudo perfquery -x",), needs_root=True
)


def skip(rdma: Rdma) -> str:
    """Spare hosts where no RDMA port is active."""
    return "" if any(port.active for port in rdma.ports) else "no RDMA port is active"


def judge(rdma: Rdma, expect: Expect, net: Net | None = None, kernel_log: KernelLog | None = None) -> Iterator[Finding]:
    """Fail on flapping; warn of counters and of mixed firmware."""
    ports = training_ports(rdma, net, expect.several("rdma.port.devices")) or tuple(p for p in rdma.ports if p.active)
    found = [finding for port in ports for finding in _counted(port, rdma, expect)]
    most = expect.whole("rdma.health.flaps_per_day")
    if kernel_log is not None and most is not None:
        found += [finding for port in ports for finding in _flaps(port, rdma, kernel_log, most)]
    found += _firmware(rdma)
    yield from found
    read = [port for port in ports if port.counters is not None]
    if found:
        return
    if not read:
        yield Finding(State.UNKNOWN, saw=f"the error counters of {len(ports)} active ports could not be read")
        return
    unread = [port.name for port in ports if port.counters is None]
    more = f"; the counters of {', '.join(unread[:_SHOWN])} could not be read" if unread else ""
    yield Finding(State.PASS, saw=f"{len(read)} active ports count no errors that matter{more}")


def judge_fleet(rdma: Mapping[str, Rdma]) -> Iterator[Finding]:
    """Warn of the hosts whose cards of one board run other firmware."""
    boards = sorted({device.board for one in rdma.values() for device in one.devices.values() if device.board})
    for board in boards[:_SHOWN]:
        versions = {
            host: ", ".join(told)
            for host, one in rdma.items()
            if (told := sorted({d.firmware for d in one.devices.values() if d.board == board and d.firmware}))
        }
        if len(set(versions.values())) > 1:
            update = Remedy(
                "Bring all cards of the board to one firmware, then reboot.",
                ("sudo mlxfwmanager --query",),
                needs_root=True,
                needs_reboot=True,
            )
            yield from uniform(versions, f"firmware of the cards {board}", remedy=update, probe="sysfs-rdma")


def _counted(port: Port, rdma: Rdma, expect: Expect) -> Iterator[Finding]:
    counters = port.counters or {}
    downed, symbols = counters.get("link_downed", 0), counters.get("symbol_error", 0)
    most, rate = expect.whole("rdma.health.link_downed"), expect.number("rdma.health.symbol_errors_per_hour")
    if most is not None and downed > most:
        yield _warned(port, "link_downed", f"has lost its link {_number(downed)} times", f"at most {most} times")
    hours = (rdma.uptime_s or 0) / _HOUR_S
    if rate is not None and hours and symbols > rate * max(hours, 1):
        saw = f"counts {_number(symbols)} symbol errors in {hours:.0f} hours"
        yield _warned(port, "symbol_error", saw, f"at most {rate:g} an hour")
    for name in _GRAVE:
        if counters.get(name):
            yield _warned(port, name, f"counts {_number(counters[name])} {name}", "none")
    if counters.get("rnr_nak_retry_err"):
        told = _number(counters["rnr_nak_retry_err"])
        yield Finding(
            State.INFO,
            saw=f"{port.name} has given up {told} transfers because the receiver was not ready (rnr_nak_retry_err)",
            subject=port.name,
            scope="nic",
        )


def _number(value: int) -> str:
    return f"at least {value}" if value in _SATURATED else str(value)


def _warned(port: Port, counter: str, saw: str, wanted: str) -> Finding:
    line = f"sysfs-rdma: {port.name} {counter} {(port.counters or {}).get(counter)}"
    return Finding(State.WARN, f"{port.name} {saw}", wanted, port.name, _CABLE, (line,), scope="nic")


def _flaps(port: Port, rdma: Rdma, log: KernelLog, most: int) -> Iterator[Finding]:
    names = [re.escape(name) for name in (rdma.of(port).pci, port.netdev) if name]
    if not names:
        return
    pattern = re.compile(rf"(?:{'|'.join(names)})\b.{{0,80}}?(?:\blink (?:is )?down\b|cable unplugged)", re.IGNORECASE)
    lines = log.find(pattern)
    now = max(_times(log.lines[-1:]), default=0.0)
    if rdma.uptime_s:
        now = max(now, rdma.uptime_s)
    recent = [at for at in _times(lines) if at > max(_BOOT_GRACE_S, now - _DAY_S)]
    if len(recent) >= most:
        yield Finding(
            State.FAIL,
            saw=f"{port.name} has lost its link {len(recent)} times within 24 hours",
            wanted=f"fewer than {most} times",
            subject=port.name,
            remedy=_CABLE,
            evidence=tuple(f"dmesg: {line}" for line in lines[-_SHOWN:]),
            scope="nic",
        )


def _times(lines: Sequence[str]) -> list[float]:
    return [float(found[1]) for line in lines if (found := _TIME.search(line[:80]))]


def _firmware(rdma: Rdma) -> Iterator[Finding]:
    boards: dict[str, dict[str, list[str]]] = {}
    for device in rdma.devices.values():
        if device.board and device.firmware and not device.virtual_function:
            boards.setdefault(device.board, {}).setdefault(device.firmware, []).append(device.name)
    for board, versions in boards.items():
        if len(versions) > 1:
            told = "; ".join(f"{version} on {', '.join(names)}" for version, names in versions.items())
            yield Finding(
                State.WARN,
                saw=f"cards of one board ({board}) run different firmware: {told}",
                wanted="one firmware for all cards of a board",
                subject=board,
                remedy=Remedy(
                    "Bring them to one firmware.", ("sudo mlxfwmanager --query",), needs_root=True, needs_reboot=True
                ),
                evidence=tuple(
                    f"sysfs-rdma: {name} fw_ver {v}" for v, names in versions.items() for name in names[:_SHOWN]
                ),
            )
