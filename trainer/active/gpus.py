"""What uses the GPUs already, as NVML tells. Outside the tests' own processes, and before any of them begins.

It says nothing where NVML is absent or silent: the launcher has asked the host itself.
"""

from __future__ import annotations

import os

_IDLE_BYTES = 2 << 30  # the driver's own share of an idle GPU stays below this


def in_use() -> str:
    """Return what uses the visible GPUs, for people; empty when nothing is seen to."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - no NVML, no answer
        return ""
    told: list[str] = []
    for at in range(int(pynvml.nvmlDeviceGetCount())):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(at)
            if not visible(at, str(pynvml.nvmlDeviceGetUUID(handle)), os.environ.get("CUDA_VISIBLE_DEVICES")):
                continue
            processes = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
            used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        except pynvml.NVMLError:
            continue
        if processes or used > _IDLE_BYTES:
            told.append(f"GPU{at}: {processes} processes, {used >> 20} MiB in use")
    return "; ".join(told)


def visible(index: int, uuid: str, listed: str | None) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES (None: not set) leaves a GPU visible."""
    if listed is None:
        return True
    words = [word.strip() for word in listed.split(",") if word.strip()]
    return any(word == str(index) or (word.startswith("GPU-") and uuid.startswith(word)) for word in words)
