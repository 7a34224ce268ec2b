"""Times of alternating calls, and the properties of the machine that affect them."""

import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jztree import kernels

Call = Callable[[], Any]
_PACKAGES = (
    *("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "pynanoflann", "pykdtree", "kdcount"),
    *("corrfunc", "treecorr", "vesin", "matscipy", "pytreegrav"),
)


def timed(call: Call) -> float:
    """Return the seconds until the result of ``call`` is ready."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def seconds(calls: dict[str, Call], runs: int) -> dict[str, float]:
    """Return median seconds of each call. Calls alternate, to share machine drifts; the first round does not count."""
    rounds = [{name: timed(call) for name, call in calls.items()} for _ in range(runs + 1)]
    return {name: statistics.median(round[name] for round in rounds[1:]) for name in calls}


def least_cpu_seconds(calls: dict[str, Call], runs: int) -> dict[str, float]:
    """Return minimum CPU seconds of each call, summed over threads. Other programs have little influence on these."""

    def cpu_seconds(call: Call) -> float:
        start = time.process_time()
        jax.block_until_ready(call())
        return time.process_time() - start

    rounds = [{name: cpu_seconds(call) for name, call in calls.items()} for _ in range(runs + 1)]
    return {name: min(round[name] for round in rounds[1:]) for name in calls}


def append_record(path: Path, figures: dict[str, Any]) -> None:
    """Append the figures of a run to a file of records, one line per run."""
    with path.open("a") as records:
        records.write(json.dumps(figures) + "\n")


def machine() -> dict[str, Any]:
    """Return the properties of the machine that affect the results."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    installed = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions()}
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "cpu": model,
        "native": {key: kernels.native_info()[key] for key in ("instruction_set", "num_threads")},
        "python": platform.python_version(),
        "versions": {name: installed[name] for name in _PACKAGES if name in installed},
    }
