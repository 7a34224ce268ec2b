"""Available memory, and formatting of byte counts."""

import os
from pathlib import Path
from typing import Any

import jax


def bytes_in_words(count: float) -> str:
    """Format bytes, for example ``1.5 GiB``."""
    for size, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count / 2**10:.3g} kiB"


def host_memory() -> int | None:
    """Return the bytes that this machine can currently give to a process, or None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        (free,) = (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    return free


def available_memory(device: Any) -> int | None:
    """Return the bytes that a device has for JAX; for a CPU, the current share of each device. None if unknown."""
    if device.platform != "cpu":
        stats = device.memory_stats()
        return (int(stats.get("bytes_limit", 0)) or None) if stats else None
    free = host_memory()
    sharing = len([device for device in jax.local_devices() if device.platform == "cpu"]) or 1
    return None if free is None else free // sharing
