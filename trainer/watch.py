"""What this rank's GPU is doing, as NVML tells: utilisation and memory.

It refuses to matter: absent, failing or hanging NVML leaves the figures empty and training goes on.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trainer.world import World

_EVERY_S = 1.0
_STALE_S = 10.0


class GpuWatch:
    """Reads the GPU in a thread of its own; without a GPU there is nothing to read."""

    def __init__(self, world: World) -> None:
        self._figures: dict[str, float] = {}
        self._read_at = float("-inf")
        if world.device.type == "cuda":
            uuid = f"GPU-{torch.cuda.get_device_properties(world.device).uuid}"
            threading.Thread(target=self._watch, args=(uuid,), name="nvml", daemon=True).start()

    def figures(self) -> dict[str, float | None]:
        """Return `gpu_util` (percent) and `gpu_memory_mib`; None where nothing fresh is known."""
        fresh = self._figures if time.monotonic() - self._read_at < _STALE_S else {}
        return {"gpu_util": fresh.get("gpu_util"), "gpu_memory_mib": fresh.get("gpu_memory_mib")}

    def _watch(self, uuid: str) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            while True:
                util = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
                used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
                self._figures = {"gpu_util": util, "gpu_memory_mib": round(used / 2**20)}
                self._read_at = time.monotonic()
                time.sleep(_EVERY_S)
        except Exception:  # noqa: BLE001 - whatever NVML says, the run does not depend on it
            return
