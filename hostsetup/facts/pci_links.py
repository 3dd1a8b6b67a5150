"""Knows which PCIe links lie between a device and the processor, and what each end of them can do. Reads no text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hostsetup.facts.pcie import Link, Port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostsetup.facts.pci_tree import Function, Pci
    from hostsetup.facts.pcie import Pcie


@dataclass(frozen=True, slots=True)
class Hop:
    """One link: `lower` is the device, or a switch's upstream port; `upper` the port above it. None: not said."""

    lower: str
    upper: str
    down: Link
    up: Link

    @property
    def width(self) -> int | None:
        """Lanes in use."""
        return self.down.width if self.down.width is not None else self.up.width

    @property
    def speed_gts(self) -> float | None:
        """Transfers a second in use."""
        return self.down.speed_gts if self.down.speed_gts is not None else self.up.speed_gts

    @property
    def best_width(self) -> int | None:
        """Lanes that both ends have."""
        return min((end.max_width for end in (self.down, self.up) if end.max_width is not None), default=None)

    @property
    def best_speed_gts(self) -> float | None:
        """Transfers a second that both ends can do."""
        return min((end.max_speed_gts for end in (self.down, self.up) if end.max_speed_gts is not None), default=None)

    @property
    def narrow(self) -> bool:
        """Whether it uses fewer lanes than both ends have."""
        return self.width is not None and self.best_width is not None and self.width < self.best_width

    @property
    def slow(self) -> bool:
        """Whether it is slower than both ends can be."""
        return self.speed_gts is not None and self.best_speed_gts is not None and self.speed_gts < self.best_speed_gts


def hops(device: Function, pci: Pci, pcie: Pcie) -> Iterator[Hop]:
    """Yield the links from a device up; between the two ports of one switch there is none."""
    chain = (device.address, *device.parents)
    for lower, upper in zip(chain[::2], chain[1::2], strict=False):
        down, up = (pcie.ports.get(end, Port()).link for end in (lower, upper))
        if upper in pci.functions:
            yield Hop(lower, upper, down, up)
    if len(chain) == 1 and device.address in pcie.ports:
        link = pcie.ports[device.address].link
        yield Hop(device.address, "", link, Link())
