"""Knows the NVLinks of each GPU and their rates, as `nvidia-smi nvlink -s` lists them. Counts no link that is not listed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hostsetup.facts.smi_query import TOOL
from hostsetup.model import Evidence, Known, Probe, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBES = (Probe("nvidia-smi-nvlink", "nvidia-smi nvlink -s", timeout_s=30, tool=TOOL),)

_GPU = re.compile(r"GPU (\d{1,3}): (.{1,100}?)(?: \(UUID: [^)]{0,80}\))?", re.ASCII)
_LINK = re.compile(r"Link (\d{1,3}): (?:(\d{1,4}(?:\.\d{1,6})?) GB/s|<?(?:is )?inactive>?)", re.ASCII | re.IGNORECASE)
_ALL_INACTIVE = re.compile(r"all links are inactive", re.IGNORECASE)
_UNSUPPORTED = re.compile(r"does not (?:have or )?support nvlink|nvlink (?:is )?not supported", re.IGNORECASE)
_HIDDEN = re.compile(
    r"devices? in MIG mode|requires reset|GPU is lost|unknown error|insufficient permission", re.IGNORECASE
)
MAX_GPUS, MAX_LINKS = 256, 64


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """One GPU's links. `rates_gbps`: GB/s each way by link, None: inactive. `supported` False: the GPU has no NVLink.

    `gap`: in nvidia-smi's words why nothing is known of this GPU's links. A GPU that says that all its links are inactive
    lists none: `rates_gbps` is empty, `supported` True and `gap` empty.
    """

    name: str
    rates_gbps: Mapping[int, float | None]
    supported: bool = True
    gap: str = ""

    @property
    def active(self) -> tuple[float, ...]:
        """The rates of the links that are up."""
        return tuple(rate for rate in self.rates_gbps.values() if rate is not None)

    @property
    def down(self) -> tuple[int, ...]:
        """The links that are listed as inactive."""
        return tuple(link for link, rate in self.rates_gbps.items() if rate is None)


def parse_nvlink(text: str) -> dict[int, GpuLinks]:
    """Read the blocks, one a GPU: its links, or the sentence that stands in their place."""
    gpus: dict[int, GpuLinks] = {}
    rates: dict[int, float | None] = {}
    at: int | None = None
    for line in filter(None, map(str.strip, text.splitlines())):
        if found := _GPU.fullmatch(line):
            at, rates = int(found[1]), {}
            if at in gpus or len(gpus) >= MAX_GPUS:
                raise ValueError("a GPU is listed twice, or there are too many")
            gpus[at] = GpuLinks(found[2], rates, gap="nothing is said of its links")
        elif at is None:
            continue
        elif (found := _LINK.fullmatch(line)) and int(found[1]) < MAX_LINKS:
            rates[int(found[1])] = float(found[2]) if found[2] else None
            gpus[at] = GpuLinks(gpus[at].name, rates)
        elif _ALL_INACTIVE.search(line):
            gpus[at] = GpuLinks(gpus[at].name, {})
        elif _UNSUPPORTED.search(line):
            gpus[at] = GpuLinks(gpus[at].name, {}, supported=False)
        elif _HIDDEN.search(line) or line.startswith("NVML:"):
            gpus[at] = GpuLinks(gpus[at].name, {}, gap=line[:200])
    if not gpus:
        raise ValueError("no GPU of `nvidia-smi nvlink -s`")
    return gpus


def _ended(gpus: dict[int, GpuLinks]) -> dict[int, GpuLinks]:
    """Doubt the last GPU of a text that may be cut off, where fewer links are listed of it than of another."""
    last = list(gpus)[-1]
    most = max(len(links.rates_gbps) for links in gpus.values())
    if not 0 < len(gpus[last].rates_gbps) < most:
        return gpus
    gap = f"the text ends after {len(gpus[last].rates_gbps)} links of GPU {last}, where others list {most}"
    return {**gpus, last: replace(gpus[last], gap=gap)}


def read(evidence: Evidence) -> Known[dict[int, GpuLinks]] | Unknown:
    """Return the links by GPU index; GPUs that have none, said without a list, are an empty answer."""
    reply = evidence.answer("nvidia-smi-nvlink")
    if isinstance(reply, Unknown):
        return reply
    try:
        links = parse_nvlink(reply.text)
        return Known(_ended(links) if reply.exit_code is None else links)
    except ValueError as error:
        said = (reply.text.strip() or reply.error_text.strip()).partition("\n")[0]
        if _UNSUPPORTED.search(said):
            return Known({})
        return Unknown(f"`nvidia-smi-nvlink`: {said[:200] or error}")


def tell(nvlink: dict[int, GpuLinks]) -> dict[str, Any]:
    """Return the facts for JSON."""
    return {"active": {str(gpu): len(links.active) for gpu, links in nvlink.items() if not links.gap}}
