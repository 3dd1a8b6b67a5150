"""Knows the bits of the PCIe Access Control Services control word. Reads no text."""

from __future__ import annotations

from typing import Final

FLAGS: Final = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
SRC_VALID, REQUEST, COMPLETION, EGRESS, DIRECT = 0x01, 0x04, 0x08, 0x20, 0x40
UPSTREAM, TRANSLATION = 0x10, 0x02
REDIRECTS = REQUEST | COMPLETION | EGRESS  # what takes a peer's traffic off its direct path; SrcValid alone does not
BY_KERNEL = SRC_VALID | REQUEST | COMPLETION | UPSTREAM  # 001d: what an active IOMMU has the kernel switch on


def flags(word: int) -> str:
    """Return the word as lspci prints it: each flag with + or -."""
    return " ".join(f"{name}{'+' if word >> bit & 1 else '-'}" for bit, name in enumerate(FLAGS))


def redirecting(word: int) -> str:
    """Return the flags of the word that redirect, or an empty string."""
    return " ".join(f"{name}+" for bit, name in enumerate(FLAGS) if word >> bit & 1 and 1 << bit & REDIRECTS)
