"""Errors that suggest a remedy if memory is too small: before arrays are allocated, and after XLA failed.

XLA reports only the bytes. On a CPU it may not fail at all: the system promises memory that it does not have, and kills
the process later.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import jax

_CONTROL_GROUP = Path("/sys/fs/cgroup/memory.max")
_NOTE = (
    "jztree: {0} ran out of memory. Use fewer particles or queries per device, or a smaller radius, k or capacity; "
    "count_within, reduce_within and kernel_sums keep no lists."
)


def check_memory(needed: int, content: str, advice: str) -> None:
    """Raise MemoryError if ``needed`` bytes exceed the largest memory of this process.

    Args:
        needed: Number of bytes.
        content: The arrays that need them, for the message.
        advice: A remedy, for the message.
    """
    largest = largest_memory()
    if needed > largest:
        raise MemoryError(f"{content} take {needed:,} bytes, but the largest memory here has {largest:,}; {advice}")


@functools.cache
def largest_memory() -> int:
    """Return the bytes of the largest memory: of the host, as far as this process may use it, or of a device."""
    devices = [(device.memory_stats() or {}).get("bytes_limit", 0) for device in jax.local_devices()]
    return max(_host_memory(), *devices)


def _host_memory() -> int:
    limit = _CONTROL_GROUP.read_text().strip() if _CONTROL_GROUP.exists() else "max"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(total, int(limit)) if limit.isdigit() else total


@contextlib.contextmanager
def explained(function: str) -> Iterator[None]:
    """Apply `explain` to errors of XLA that leave the block."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        explain(error, function)
        raise


def explain(error: Exception, function: str) -> None:
    """Add a note to an XLA error if memory is exhausted; see `BaseException.add_note`."""
    notes = getattr(error, "__notes__", [])  # one function of the library may call another
    if "RESOURCE_EXHAUSTED" in str(error) and not any(note.startswith("jztree:") for note in notes):
        error.add_note(_NOTE.format(function))
