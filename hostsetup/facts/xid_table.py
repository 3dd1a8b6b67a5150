"""Knows what each Xid of NVIDIA's driver stands for, and to which class it belongs. Says nothing of what to do.

A number that is not here is no harmless one: it belongs to `Kind.OTHER`.
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What sort of trouble an Xid tells of."""

    CABLE = "auxiliary power not connected"
    LOST = "the GPU is off the bus"
    RESTART = "the node must restart"
    FIRMWARE = "the GPU's firmware or its initialisation failed"
    MEMORY = "uncontained memory error"
    REMAP_FAILED = "a bad row could not be remapped"
    REMAPPED = "a bad row was recorded for remapping"
    DETAIL = "detail of a memory error"
    RETIREMENT = "a resource is to be retired"
    RETIREMENT_NOTE = "retirement of resources"
    CONTAINED = "contained memory error"
    NVLINK = "NVLink error"
    CONSEQUENCE = "usually the consequence of another error"
    SWITCH_TIMEOUT = "a context switch timed out"
    RECOVERY = "the driver's recovery action changed"
    SOFTWARE = "most often a fault of the program"
    RATE = "errors that were corrected or concern one engine"
    INFOROM = "the InfoROM's file system has errors"
    SMOOTHING = "power smoothing"
    SMOOTHING_WORN = "the power smoothing circuit is worn out"
    OTHER = "no documented class"


_CLASSES: dict[Kind, tuple[int, ...]] = {
    Kind.CABLE: (54,),
    Kind.LOST: (79,),
    Kind.RESTART: (151, 168),
    Kind.FIRMWARE: (62, 110, 119, 120, 143, 158, 169),
    Kind.MEMORY: (48, 95, 140),
    Kind.REMAP_FAILED: (64,),
    Kind.REMAPPED: (63,),
    Kind.DETAIL: (171, 172),
    Kind.RETIREMENT: (156, 157),
    Kind.RETIREMENT_NOTE: (160, 161),
    Kind.CONTAINED: (94,),
    Kind.NVLINK: (74, 136, *range(144, 151), 155),
    Kind.CONSEQUENCE: (137,),
    Kind.SWITCH_TIMEOUT: (109,),
    Kind.RECOVERY: (154,),
    Kind.SOFTWARE: (13, 31, 43, 45, 68, 69),
    Kind.RATE: (92, 121, *range(126, 130)),
    Kind.INFOROM: (125,),
    Kind.SMOOTHING: (162, 163, 164),
    Kind.SMOOTHING_WORN: (165,),
}
_KINDS = {number: kind for kind, numbers in _CLASSES.items() for number in numbers}

_NAMES = {
    13: "graphics engine exception",
    31: "memory access by a bad address",
    43: "a channel stopped",
    45: "channels were torn down",
    48: "double-bit ECC error",
    54: "auxiliary power not connected",
    62: "microcontroller halt",
    63: "row remapping or page retirement recorded",
    64: "remapping or page retirement could not be recorded",
    68: "video decoder exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "no answer of the GPU's system processor (GSP)",
    120: "error of the GPU's system processor (GSP)",
    121: "C2C link error",
    136: "NVLink training failed",
    137: "NVLink error passed on",
    140: "uncorrectable memory error",
    143: "initialisation failed",
    151: "key rotation failed",
    154: "recovery action changed",
    155: "NVLink flow, defined by software",
    158: "fatal timeout",
    162: "power smoothing re-engaged",
    163: "power smoothing disengaged",
    164: "power smoothing circuit: little lifetime left",
    166: "no action documented",
    167: "fatal PCIe timeout",
    168: "memory capacity reduced",
    171: "detail of a DRAM error",
    172: "detail of an SRAM error",
}


def kind_of(number: int) -> Kind:
    """Return the class of an Xid."""
    return _KINDS.get(number, Kind.OTHER)


def meaning(number: int) -> str:
    """Return an Xid's meaning in a few words."""
    return _NAMES.get(number) or kind_of(number).value
