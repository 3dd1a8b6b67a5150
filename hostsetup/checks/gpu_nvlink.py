"""NVLinks of a GPU are down, or do not run at one rate.

What it means
    A GPU has fewer active NVLinks than its board has, or than it was expected to have, or its links run at different rates.

Why it matters to training
    A GPU that lost links gets that much less bandwidth in every all-reduce, and all other ranks wait for it. With all links
    of an SXM board down, NCCL falls back to PCIe, or the fabric does not come up and CUDA does not start at all.

How we tell
    `nvidia-smi nvlink -s` lists each GPU's links with a rate in GB/s each way, or `<inactive>`. SXM boards whose links all
    lead to switches or neighbours on the board have a known number: A100 12, H100, H200, H20, B200, B300 and GB200 18,
    A800 and H800 8; a V100 or P100 board with eight GPUs 6 and 4. Fewer fails there; a site may expect a number for any
    board (`gpu.nvlink.links`) and a rate (`gpu.nvlink.rate_gbps`, 2 % less is no difference). Rates that differ within a
    host fail. Drivers print other numbers for the same generation, so no rate is built in.
    Cards with bridges have as many links as bridges are plugged in: nothing is expected of them unless the site says so,
    and a card without a bridge, which says "all links are inActive", is healthy. GH200 and single GPUs of a board (in a
    virtual machine, say) have nobody to link to and are skipped. A GPU in MIG mode shows no links: unknown. Error counters
    are not read, for only their growth says something.
    A host without NVIDIA GPUs or without NVLink is skipped.

What to do
    Look into the kernel log for Xid 74 and for SXid lines; drain the host, stop what uses the GPUs, and reset all GPUs
    together (`nvidia-smi -r`) with the fabric manager started anew; or reboot. A link that stays down is the board, the
    bridge or the baseboard.

How to undo
    A reset needs no undoing.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html
    https://github.com/Azure/azhpc-diagnostics/issues/73
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts import nvidia
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.nvlink import GpuLinks
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.nvlink"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
LINKS, RATE = "gpu.nvlink.links", "gpu.nvlink.rate_gbps"
EXPECTS = {
    LINKS: Want(int, "active NVLinks of each GPU"),
    RATE: Want(float, "rate of each NVLink in GB/s each way, as nvidia-smi prints it; 2 % less is no difference"),
}
# links of boards on which all of them lead somewhere; the second number: only where so many GPUs are in the host
_BOARDS = (
    (re.compile(r"\b[AH]800\b(?!.*PCIe)"), 8, 2),
    (re.compile(r"\bA100-SXM|\bA100.*SXM"), 12, 2),
    (re.compile(r"\bH100 80GB HBM3|\bH100.*SXM|\bH200\b(?!.*NVL)|\bH20\b|\bG?B[23]00\b"), 18, 2),
    (re.compile(r"\bV100-SXM"), 6, 8),
    (re.compile(r"\bP100-SXM"), 4, 8),
)
_TOLERANCE = 0.02
_REMEDY = Remedy(
    "Look into the kernel log for Xid 74 and SXid; drain the host, reset all GPUs together with the fabric manager started "
    "anew, or reboot. A link that stays down is the board's or the bridge's.",
    ("sudo journalctl -k -b --no-pager | grep -iE 'xid'", "nvidia-smi nvlink -s", "nvidia-smi nvlink -e"),
    needs_root=True,
)


def skip(pci: Pci | None = None, nvlink: Mapping[int, GpuLinks] | None = None) -> str:
    """Spare hosts without NVIDIA GPUs, without NVLink, or with one GPU alone."""
    if pci is not None and (absent := nvidia.absent(pci)):
        return absent
    if nvlink is None:
        return ""
    if all(not links.supported for links in nvlink.values()):
        return "no GPU of this host has NVLink"
    return "one GPU: it has no other to be linked to" if len(nvlink) == 1 else ""


def judge(nvlink: Mapping[int, GpuLinks], expect: Expect) -> Iterator[Finding]:
    """Fail on links that are missing, and on rates that differ or are too low."""
    hidden = {gpu: links for gpu, links in nvlink.items() if links.gap}
    seen = {gpu: links for gpu, links in nvlink.items() if links.supported and not links.gap}
    bad = [*_missing(seen, len(nvlink), expect), *_rates(seen, expect)]
    yield from bad
    if hidden:
        first = next(iter(hidden))
        saw = f"the links of {len(hidden)} of {len(nvlink)} GPUs are not shown: {hidden[first].gap}"
        yield Finding(State.UNKNOWN, saw=saw, subject=_subject(first, hidden[first]) if len(hidden) == 1 else "")
    elif not bad:
        yield Finding(State.PASS, saw=_told(seen))


def _missing(seen: Mapping[int, GpuLinks], gpus: int, expect: Expect) -> Iterator[Finding]:
    for gpu, links in seen.items():
        wanted, origin = expect.whole(LINKS), expect.origin(LINKS)
        if wanted is None:
            wanted, origin = _of_board(links.name, gpus), nvidia.model(links.name)
        active = len(links.active)
        if wanted is None or active >= wanted:
            continue
        down = f", inactive: {', '.join(map(str, links.down[:18]))}" if links.down else ""
        lines = tuple(f"nvidia-smi-nvlink: GPU {gpu}: Link {link}: <inactive>" for link in links.down[:6])
        yield Finding(
            State.FAIL,
            saw=f"{active} of {wanted} NVLinks are active{down}",
            wanted=f"{wanted} active NVLinks ({origin})",
            subject=_subject(gpu, links),
            remedy=_REMEDY,
            evidence=lines or (f"nvidia-smi-nvlink: GPU {gpu}: all links are inactive",),
            scope="gpu",
        )


def _of_board(name: str, gpus: int) -> int | None:
    if "GH200" in name:
        return None
    return next((links for board, links, least in _BOARDS if gpus >= least and board.search(name)), None)


def _rates(seen: Mapping[int, GpuLinks], expect: Expect) -> Iterator[Finding]:
    rates = Counter(rate for links in seen.values() for rate in links.active)
    wanted = expect.number(RATE)
    usual = wanted if wanted is not None else max(rates, default=0.0)
    same_kind = len({links.name for links in seen.values() if links.active}) == 1
    if not rates or (wanted is None and not same_kind):
        return
    for gpu, links in seen.items():
        slow = {link: rate for link, rate in links.rates_gbps.items() if rate is not None and _below(rate, usual)}
        if slow:
            lowest = min(slow.values())
            yield Finding(
                State.FAIL,
                saw=f"{len(slow)} NVLink{'s' * (len(slow) > 1)} at {lowest:g} GB/s",
                wanted=f"{usual:g} GB/s ({expect.origin(RATE) if wanted is not None else 'the other links of the host'})",
                subject=_subject(gpu, links),
                remedy=_REMEDY,
                evidence=tuple(f"nvidia-smi-nvlink: GPU {gpu}: Link {n}: {rate:g} GB/s" for n, rate in slow.items())[
                    :6
                ],
                scope="gpu",
            )


def _below(rate: float, usual: float) -> bool:
    return rate < usual * (1 - _TOLERANCE)


def baseline(nvlink: Mapping[int, GpuLinks]) -> Mapping[str, Value]:
    """Return what a good host has, where its GPUs are alike."""
    told: dict[str, Value] = {}
    seen = [links for links in nvlink.values() if links.supported]
    counts, rates = {len(links.active) for links in seen}, {rate for links in seen for rate in links.active}
    if len(counts) == 1 and not any(links.gap for links in seen) and (count := counts.pop()):
        told[LINKS] = count
        if len(rates) == 1:
            told[RATE] = rates.pop()
    return told


def _subject(gpu: int, links: GpuLinks) -> str:
    return f"GPU {gpu} ({links.name})"


def _told(seen: Mapping[int, GpuLinks]) -> str:
    counts = Counter(len(links.active) for links in seen.values())
    rates = sorted({rate for links in seen.values() for rate in links.active})
    speed = f" at {' and '.join(f'{rate:g}' for rate in rates[:3])} GB/s each way" if rates else ""
    told = ", ".join(
        f"{n} GPU{'s' * (n > 1)} with {links or 'no'} active NVLinks" for links, n in counts.most_common(4)
    )
    return f"{told}{speed}"
