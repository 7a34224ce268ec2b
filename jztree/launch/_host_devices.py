"""Provide enough threads for callbacks if one CPU counts as several devices.

XLA's CPU client has as many threads as there are cores. A host callback (`jax.debug.callback`, `io_callback`) holds one
thread while another copies its arguments, if they are larger than about 100 kB. If every device is in a callback and
there are not more cores than devices, no thread is left for the copies, and the program hangs (seen with jax 0.10.2, 4
devices on 2 cores). So in such a configuration XLA gets more threads, unless the user has set their number.
"""

import os
import re

import jax


def leave_threads_for_callbacks() -> None:
    """Set PJRT_NPROC if callbacks could block all threads; XLA reads it when it starts."""
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    devices = max(int(flag[1]) if flag else 1, getattr(jax.config, "jax_num_cpu_devices", 1))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if devices > 1 and devices >= cores:
        os.environ.setdefault("PJRT_NPROC", str(cores + devices))
