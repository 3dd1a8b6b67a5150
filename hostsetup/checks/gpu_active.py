"""Under load, data arrive wrong, a test fails, or a link is slower than it should be.

What it means
    `--active` ran load tests in a container of the trainer's image: copies between host memory and every GPU, copies
    between every ordered pair of GPUs, an all-reduce over all GPUs of a host, and an all-reduce and an exchange between
    neighbouring hosts. Something came back with other bytes than were sent, broke off, or was slow.

Why it matters to training
    Wrong bytes do not stop a run: they spoil its weights. Drivers have claimed peer access that moved nothing, and a
    translating IOMMU or redirected PCIe traffic can corrupt copies while every capability matrix says OK. A slow link
    sets the pace of every all-reduce of every host.

How we tell
    The audit itself puts no load on anything; these findings come from the tests alone and say so ("active"). Data are
    random and compared byte by byte with the copy in host memory; collectives have a sum that is known exactly. Bus and
    algorithm bandwidth are what nccl-tests call by these names. Wrong data, a process that died and an error of the
    library are failures, and so is a copy between two GPUs that hangs. A collective that comes to no end is unknown: a
    firewall, a busy host or a wrong interface look the same as broken hardware. Where all GPUs are joined by eight or
    more NVLinks, bus bandwidth of the all-reduce below 150 GB/s is a failure; elsewhere below 15 GB/s is a warning, for
    old PCIe generations are no faster. A pair with less than half of what like pairs reach (the median) is named.
    Without GPUs the collectives run over CPU ranks with Gloo: their data are verified and no speed is judged. These
    floors come from the published figures of others; a site's own belong into its file of expectations.

What to do
    Wrong data between GPUs: see iommu.mode and pcie.acs.redirect; update an old driver; until then run with
    `--preset no-p2p`. One slow pair: see gpu.topology, gpu.nvlink and pcie.link, then reseat or replace. A test between
    hosts that does not end: see net.iface and the firewall. Test again after every change: `--active --only gpu.active`.

How to undo
    Nothing is changed; the containers are gone when the audit ends.

Sources
    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
    https://github.com/NVIDIA/nccl-tests/issues/117
    https://github.com/NVIDIA/NVSentinel/blob/main/docs/configuration/preflight.md
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostsetup.expect import Expect
    from hostsetup.facts.active import Active, Result
    from hostsetup.facts.topology import Topology

ID = "gpu.active"
SOURCE = "https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md"

NVLINK, PCIE, BETWEEN = f"{ID}.nvlink_gbs", f"{ID}.pcie_gbs", f"{ID}.between_hosts_gbs"
EXPECTS = {
    NVLINK: Want(float, "least bus bandwidth in GB/s of a host's all-reduce where NVLink joins all GPUs", 150.0),
    PCIE: Want(float, "the same where it does not", 15.0),
    BETWEEN: Want(float, "least bus bandwidth in GB/s of the all-reduce of two hosts with GPUs"),
}
_MANY_LINKS = 8  # the bridges of workstation cards have fewer
_OUTLIER = 0.5
_PEERS = 3
_SHOWN = 8

_NAMES = {
    "copy.host": "copies between host memory and a GPU",
    "copy.peer": "copies between GPUs",
    "all_reduce.host": "all-reduce within the host",
    "all_reduce.pair": "all-reduce of two hosts",
    "sendrecv.pair": "exchange between two hosts",
    "setup": "the tests",
}
_VERIFIED = "every byte that arrives is what was sent"
_SETUP = "an engine, the image, and GPUs that nothing else uses"
_NOT_TESTED = frozenset({"usage", "setup", "busy"})
_COPY = Remedy(
    "Look at iommu.mode, pcie.acs.redirect and the driver's version; until it is put right, train with --preset no-p2p."
)
_LIBRARY = Remedy("Read the error; repeat the test alone, then look at gpu.xid, gpu.nvlink and the kernel log.")
_NETWORK = Remedy(
    "Look at the network between the two hosts: net.iface, the firewall, and rdma.port where there is one."
)
_SLOW = Remedy("Look at gpu.topology, gpu.nvlink, pcie.link and pcie.acs.redirect of this host; then test again.")


def skip(active: Active) -> str:
    """Say that nobody asked for load."""
    return "" if active.asked else "not asked: --active runs load tests"


def judge(active: Active, expect: Expect, topology: Topology | None = None) -> Iterator[Finding]:
    """Judge data first, then errors, then speed; what is right is told in one line."""
    good = [one for one in active.results if one.verified]
    yield from _grouped([one for one in active.results if one.verified is False], State.FAIL, _VERIFIED)
    errors = [one for one in active.results if one.verified is None]
    for state in (State.FAIL, State.UNKNOWN):
        yield from _grouped([one for one in errors if _state(one, errors) is state], state, "a test that ends")
    yield from _floors(good, expect, topology)
    yield from _slow_pairs(good, topology)
    if active.unread:
        yield Finding(State.UNKNOWN, saw=f"active: {active.unread} lines of results are not readable")
    within = [one for one in good if not one.hosts]
    if within:
        on_gpus = any(one.backend != "gloo" for one in within)
        told = "; ".join(_summary(within)) + ("" if on_gpus else "; no GPU was tested, and no speed is judged")
        yield Finding(State.PASS if on_gpus else State.INFO, saw=f"active: {told}", wanted=_VERIFIED)
    for hosts in dict.fromkeys(one.hosts for one in good if one.hosts):
        told = "; ".join(_summary([one for one in good if one.hosts == hosts]))
        yield _pair(Finding(State.PASS, saw=f"active: {told}", wanted=_VERIFIED), hosts)


def _state(one: Result, errors: Sequence[Result]) -> State | None:
    """Return what an error means; None when it only echoes what another rank tells."""
    if one.kind == "peer":
        others = [e for e in errors if (e.test, e.subject) == (one.test, one.subject) and e.kind != "peer"]
        return None if others else State.FAIL
    if one.kind == "timeout":
        return State.FAIL if one.test == "copy.peer" else State.UNKNOWN
    return State.UNKNOWN if one.kind in _NOT_TESTED else State.FAIL


def _grouped(results: Sequence[Result], state: State, wanted: str) -> Iterator[Finding]:
    """Give one finding for each kind of trouble, however many pairs have it."""
    groups: dict[tuple[str, str, str, tuple[str, ...]], list[Result]] = defaultdict(list)
    for one in results:
        groups[one.test, one.kind, one.next, one.hosts].append(one)
    for (test, kind, then, hosts), group in groups.items():
        finding = Finding(
            state,
            saw=f"active: {_NAMES.get(test, test)}: {_first_words(group)}",
            wanted=_SETUP if kind in _NOT_TESTED else wanted,
            subject=_subjects(group),
            remedy=Remedy(then) if then else _remedy(test, kind),
            evidence=_evidence(group),
        )
        yield _pair(finding, hosts)


def _remedy(test: str, kind: str) -> Remedy:
    if kind in _NOT_TESTED:
        return Remedy("Put right what the error names, then test again.")
    if test.endswith(".pair"):
        return _NETWORK
    return _COPY if test.startswith("copy") else _LIBRARY


def _first_words(group: Sequence[Result]) -> str:
    told = dict.fromkeys(one.error for one in group)
    first = next(iter(told))
    return first + (f" (and {len(group) - 1} more)" if len(group) > 1 else "")


def _subjects(group: Sequence[Result]) -> str:
    names = [name for name in dict.fromkeys(one.subject for one in group) if name]
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _evidence(group: Iterable[Result]) -> tuple[str, ...]:
    lines = []
    for one in group:
        measured = "" if one.value is None else f"{one.value:g} {one.unit}"
        lines.append(" ".join(f"active: {one.test} {one.subject} {one.error or measured}".split()))
    return tuple(lines[:_SHOWN])


def _pair(finding: Finding, hosts: tuple[str, ...]) -> Finding:
    if not hosts:
        return finding
    return Finding(
        finding.state, finding.saw, finding.wanted, finding.subject or " <-> ".join(hosts), finding.remedy,
        finding.evidence, scope="pair", hosts=hosts,
    )  # fmt: skip


def _floors(good: Sequence[Result], expect: Expect, topology: Topology | None) -> Iterator[Finding]:
    links = topology.links.values() if topology is not None and not topology.cut else ()
    linked = bool(links) and all(_links(link) >= _MANY_LINKS for link in links)
    for one in good:
        if one.backend != "nccl" or one.value is None:
            continue
        key = {"all_reduce.host": NVLINK if linked else PCIE, "all_reduce.pair": BETWEEN}.get(one.test, "")
        floor = expect.number(key)
        if floor is None or one.value >= floor:
            continue
        finding = Finding(
            State.FAIL if key == NVLINK else State.WARN,
            saw=f"active: {_NAMES[one.test]} over {one.ranks} GPUs: {one.value:g} GB/s bus bandwidth",
            wanted=f"{floor:g} GB/s or more ({'NVLink' if linked else 'PCIe'}; {expect.origin(key)})"
            if not one.hosts
            else f"{floor:g} GB/s or more ({expect.origin(key)})",
            remedy=_NETWORK if one.hosts else _SLOW,
            evidence=_evidence([one]),
        )
        yield _pair(finding, one.hosts)


def _links(link: str) -> int:
    return int(link[2:]) if link.startswith("NV") else 0


def _slow_pairs(good: Sequence[Result], topology: Topology | None) -> Iterator[Finding]:
    """Name the pairs of GPUs far below the pairs that are joined alike."""
    classes: dict[str, list[Result]] = defaultdict(list)
    for one in good:
        if one.test == "copy.peer" and one.value is not None:
            classes[_class(one.subject, topology)].append(one)
    for link, group in classes.items():
        usual = median(one.value or 0.0 for one in group)
        slow = [one for one in group if (one.value or 0.0) < _OUTLIER * usual]
        if len(group) >= _PEERS and slow:
            yield Finding(
                State.WARN,
                saw=f"active: {min(one.value or 0.0 for one in slow):g} GB/s where like pairs reach {usual:g}"
                + (f" ({link})" if link else ""),
                wanted="at least half of what pairs that are joined alike reach",
                subject=_subjects(slow),
                remedy=_SLOW,
                evidence=_evidence(slow),
            )


def _class(subject: str, topology: Topology | None) -> str:
    ends = sorted(int(word.removeprefix("GPU")) for word in subject.split(" -> ") if word.removeprefix("GPU").isdigit())
    return topology.links.get((ends[0], ends[1]), "") if topology is not None and len(ends) == 2 else ""


def _summary(good: Sequence[Result]) -> Iterator[str]:
    for test in dict.fromkeys(one.test for one in good):
        group = [one for one in good if one.test == test]
        rates = sorted(one.value for one in group if one.value is not None)
        most = f" to {rates[-1]:g}" if rates and rates[-1] > rates[0] else ""
        ranks = f" over {group[0].ranks} {'CPU ranks (Gloo)' if group[0].backend == 'gloo' else 'GPUs'}"
        count = f"{len(group)} " if len(group) > 1 else ""
        bus = " bus bandwidth" if test.startswith("all_reduce") else ""
        speed = f", {rates[0]:g}{most} GB/s{bus}" if rates else ""
        yield f"{count}{_NAMES.get(test, test)}{ranks if group[0].ranks else ''} verified{speed}"


def judge_fleet(active: Mapping[str, Active]) -> Iterator[Finding]:
    """Name the hosts, and pairs of hosts, far below their peers; only GPUs are compared."""
    alike: dict[tuple[str, int], list[tuple[tuple[str, ...], Result]]] = defaultdict(list)
    for host, told in active.items():
        for one in told.results:
            if one.verified and one.backend == "nccl" and one.value is not None:
                alike[one.test, one.ranks].append((one.hosts or (host,), one))
    for (test, _), group in alike.items():
        usual = median(one.value or 0.0 for _, one in group)
        if len(group) < _PEERS:
            continue
        for hosts, one in group:
            if (one.value or 0.0) < _OUTLIER * usual:
                yield Finding(
                    State.WARN,
                    saw=f"active: {_NAMES.get(test, test)}: {one.value:g} GB/s where others reach {usual:g}",
                    wanted="at least half of what its peers reach",
                    subject=" <-> ".join(hosts),
                    remedy=_NETWORK if one.hosts else _SLOW,
                    evidence=_evidence([one]),
                    scope="pair" if len(hosts) > 1 else "cluster",
                    hosts=hosts,
                )
