"""A GPU's firmware differs from that of its peers, or its InfoROM is damaged.

What it means
    Every board carries a VBIOS and an InfoROM, a small store for its settings and its history of errors. GPUs of one kind
    have other versions here than elsewhere, or the InfoROM's checksum is wrong.

Why it matters to training
    Versions decide power limits, clocks, NVLink and error handling: mixed ones give ranks of different speed, and faults
    that only some hosts show. A board with a damaged InfoROM forgets its errors and its settings.

How we tell
    VBIOS and InfoROM image of each GPU, compared among GPUs with the same device and subsystem id only: boards of other
    makers have other versions by right. On one host and over the fleet the majority counts, and who differs is named.
    Damage: `inforom.checksum_validation`, or nvidia-smi's own warning. nvidia-smi then exits with 14 although all the rest
    of its answer is good.

What to do
    Flash with the vendor's tool and reboot; drain the host before. For a damaged InfoROM ask the vendor's support: the
    board is usually replaced.

How to undo
    Flash the former version, where the vendor allows it.

Sources
    https://docs.nvidia.com/deploy/nvidia-smi/index.html
    https://docs.nvidia.com/deploy/xid-errors/
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from hostsetup.expect import Want
from hostsetup.facts.gpu_fields import lacks, no_gpus
from hostsetup.facts.xid import address_of
from hostsetup.model import Finding, Remedy, State
from hostsetup.uniform import uniform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostsetup.expect import Expect, Value
    from hostsetup.facts.gpu_fields import Gpu, Gpus
    from hostsetup.facts.pci_tree import Pci

ID = "gpu.firmware"
SOURCE = "https://docs.nvidia.com/deploy/nvidia-smi/index.html"
EXPECTS = {"gpu.firmware.vbios": Want(str, "the VBIOS versions that are right here", many=True)}

_VBIOS, _INFOROM, _CHECKSUM = "vbios_version", "inforom.img", "inforom.checksum_validation"
_FIELDS = {_VBIOS: "VBIOS", _INFOROM: "InfoROM"}
_DAMAGED = re.compile(r"infoROM is corrupted", re.IGNORECASE)
_MAX_BOARDS = 16
_FLASH = Remedy(
    "Bring the boards of one kind to one version with the vendor's tool, then reboot.",
    needs_root=True,
    needs_reboot=True,
    needs_firmware=True,
)
_SUPPORT = Remedy("Ask the vendor's support; compare the Xids of this GPU (125).", needs_firmware=True)


def skip(pci: Pci | None = None, gpu_state: Gpus | None = None) -> str:
    """Spare hosts without GPUs, and GPUs that tell no version."""
    return no_gpus(pci, gpu_state) or (lacks(gpu_state, "firmware", _VBIOS, _INFOROM) if gpu_state else "")


def judge(gpu_state: Gpus, expect: Expect, gpu_repair: Gpus | None = None) -> Iterator[Finding]:
    """Fail damaged boards; warn of those that differ from their peers on the host, or from what is expected."""
    told = gpu_state.read(_VBIOS, _INFOROM)
    for gpu, why in told.gaps:
        yield Finding(State.UNKNOWN, saw=why, subject=gpu.subject, scope="gpu")
    damaged = _damaged(gpu_state, gpu_repair)
    good = 0
    for gpu, _ in told.values:
        odd = _odd(gpu, gpu_state, expect)
        if gpu.index in damaged:
            shown = (damaged[gpu.index],)
            yield Finding(
                State.FAIL, "the InfoROM is damaged", "a sound InfoROM", gpu.subject, _SUPPORT, shown, scope="gpu"
            )
        elif odd:
            shown = (gpu_state.evidence(gpu, _VBIOS, _INFOROM),)
            yield Finding(
                State.WARN, odd, "one version on all boards of a kind", gpu.subject, _FLASH, shown, scope="gpu"
            )
        else:
            good += 1
    if good:
        yield Finding(
            State.PASS, saw=f"{_versions(gpu_state)} on {good} GPUs", wanted="one version on all boards of a kind"
        )


def _damaged(gpu_state: Gpus, gpu_repair: Gpus | None) -> dict[int, str]:
    """Return the GPUs whose InfoROM is damaged, with the line that says so."""
    found: dict[int, str] = {}
    for gpus in (gpu_state, *([gpu_repair] if gpu_repair else [])):
        found |= {gpu.index: gpus.evidence(gpu, _CHECKSUM) for gpu in gpus.gpus if gpu.value(_CHECKSUM) == "invalid"}
        for line in filter(_DAMAGED.search, gpus.remarks):
            gpu = gpu_state.at(address_of(line))
            if gpu is not None:
                found[gpu.index] = f"{gpus.source}: {line}"
    return found


def _board(gpu: Gpu) -> tuple[str, str]:
    ids = gpu.value("pci.device_id"), gpu.value("pci.sub_device_id")
    return (ids[0] or gpu.name, ids[1] or "")


def _odd(gpu: Gpu, gpus: Gpus, expect: Expect) -> str:
    right = expect.several("gpu.firmware.vbios")
    vbios = gpu.value(_VBIOS)
    if right and vbios is not None and vbios not in right:
        return f"VBIOS {vbios[:40]}, expected {' or '.join(map(str, right))} ({expect.origin('gpu.firmware.vbios')})"
    for field, name in _FIELDS.items():
        value = gpu.value(field)
        peers = Counter(other for one in gpus.gpus if _board(one) == _board(gpu) and (other := one.value(field)))
        if value is None or not peers:
            continue
        usual, count = peers.most_common(1)[0]
        if value != usual and count * 2 > peers.total():
            return f"{name} {value[:40]}, {usual[:40]} on most boards of this kind here"
        if len(peers) > 1 and count * 2 <= peers.total():
            return f"{name} {value[:40]}; boards of this kind have {len(peers)} versions here, none on most"
    return ""


def _versions(gpus: Gpus) -> str:
    told = []
    for field, name in _FIELDS.items():
        values = sorted({value for gpu in gpus.gpus if (value := gpu.value(field))})
        told += [f"{name} {', '.join(values[:4])[:120]}"] if values else []
    return "; ".join(told)


def judge_fleet(gpu_state: Mapping[str, Gpus]) -> Iterator[Finding]:
    """Warn of the hosts whose boards of a kind have other versions than on most hosts."""
    boards: dict[tuple[str, str], dict[str, list[Gpu]]] = defaultdict(lambda: defaultdict(list))
    for host, gpus in gpu_state.items():
        for gpu in gpus.gpus:
            boards[_board(gpu)][host].append(gpu)
    for board, hosts in list(boards.items())[:_MAX_BOARDS]:
        names = {gpu.name for gpus in hosts.values() for gpu in gpus} - {""}
        for field, name in _FIELDS.items():
            values = {
                host: " and ".join(told[:4])
                for host, gpus in hosts.items()
                if (told := sorted({value[:40] for gpu in gpus if (value := gpu.value(field))}))
            }
            if len(set(values.values())) > 1:
                what = f"{name} of {min(names, default=board[0]) or 'the GPUs'}"
                yield from uniform(values, what, remedy=_FLASH, probe="nvidia-smi-state")


def baseline(gpu_state: Gpus) -> Mapping[str, Value]:
    """Return the VBIOS versions."""
    versions = tuple(sorted({value for gpu in gpu_state.gpus if (value := gpu.value(_VBIOS))}))
    return {"gpu.firmware.vbios": versions} if versions else {}
