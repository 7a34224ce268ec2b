"""One CPU that counts as several devices: enough threads for callbacks.

XLA gives its CPU client as many threads as there are cores. A host callback (`jax.debug.callback`, `io_callback`)
holds one of them while its arguments, if they are larger than about 100 kB, are copied by another. If every device is
in a callback and there are not more cores than devices, no thread is left for the copies, and nothing goes on (seen
with jax 0.10.2, 4 devices on 2 cores). So where a CPU is told to be that many devices, XLA is given more threads,
unless the user has chosen.
"""

import os
import re

import jax


def leave_threads_for_callbacks() -> None:
    """Set PJRT_NPROC, from which XLA takes its number of threads when it starts, if callbacks could block them all."""
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    devices = max(int(flag[1]) if flag else 1, getattr(jax.config, "jax_num_cpu_devices", 1))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if devices > 1 and devices >= cores:
        os.environ.setdefault("PJRT_NPROC", str(cores + devices))
