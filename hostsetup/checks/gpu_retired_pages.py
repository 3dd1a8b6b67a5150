"""A GPU has memory pages to retire, or has retired many.

What it means
    GPUs up to Volta take a page of memory out of use after a double-bit error, or two single-bit errors at one address.
    The page is left out from the next start of the driver on.

Why it matters to training
    Until then the bad page can be handed out again, and the next error in it ends the run. The list of retired pages is
    finite: at 60 pages the GPU is due for replacement.

How we tell
    `retired_pages.*` of nvidia-smi. Pages that wait: failure until the reboot. Together `gpu.retired_pages.limit` (60) or
    more: warning. Newer GPUs print `[N/A]`, for they remap rows (gpu.row_remap): a skip.

What to do
    End the jobs and reboot, or reset the GPU. At the limit, have the GPU replaced.

How to undo
    Nothing can be taken back: retired pages stay retired.

Sources
    https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.gpu_fields import lacks, no_gpus
from hostsetup.model import Finding, Remedy, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.expect import Expect
    from hostsetup.facts.gpu_fields import Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.retired_pages"
SOURCE = "https://docs.nvidia.com/deploy/dynamic-page-retirement/index.html"
EXPECTS = {"gpu.retired_pages.limit": Want(int, "at how many retired pages a GPU is due for replacement", 60)}

_PENDING = "retired_pages.pending"
_SINGLE, _DOUBLE = "retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count"
_WANTED = "no page that waits, and few that are retired"


def skip(pci: Pci | None = None, gpu_state: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and GPUs that remap rows instead."""
    return no_gpus(pci, gpu_state) or (
        lacks(gpu_state, "page retirement", _PENDING, _SINGLE, _DOUBLE) if gpu_state else ""
    )


def judge(gpu_state: Gpus, expect: Expect) -> Iterator[Finding]:
    """Judge each GPU that retires pages."""
    told = gpu_state.read(_PENDING, _SINGLE, _DOUBLE)
    for gpu, why in told.gaps:
        yield Finding(State.UNKNOWN, saw=why, subject=gpu.subject, scope="gpu")
    limit = expect.whole("gpu.retired_pages.limit") or 60
    good = 0
    for gpu, _ in told.values:
        pages = sum(gpu.number(name) or 0 for name in (_SINGLE, _DOUBLE))
        waits = gpu.yes(_PENDING)
        if not waits and pages < limit:
            good += waits is False
            if waits is None:
                saw = f"nvidia-smi says {gpu.fields.get(_PENDING)!r} of pages that wait"
                yield Finding(State.UNKNOWN, saw, _WANTED, gpu.subject, scope="gpu")
            continue
        yield Finding(
            State.FAIL if waits else State.WARN,
            saw=f"pages wait for their retirement; {pages:.0f} are retired"
            if waits
            else f"{pages:.0f} pages are retired",
            wanted=_WANTED,
            subject=gpu.subject,
            remedy=Remedy("End the jobs and reboot.", needs_root=True, needs_reboot=True)
            if waits
            else Remedy("Have the GPU replaced."),
            evidence=(gpu_state.evidence(gpu, _SINGLE, _DOUBLE, _PENDING),),
            scope="gpu",
        )
    if good:
        yield Finding(State.PASS, saw=f"no page waits on {good} GPUs", wanted=_WANTED)
