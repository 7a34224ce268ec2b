"""A process that times calls of one library on one sample: ``python -m gpu.measure JOB``. Prints a finding a call."""

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from . import samples, stages
from .child import one_line, tell
from .libraries import Library, comes_from, digest, linking_length, opened

_PATIENCE = 20.0  # seconds for the timed runs of one call; where one takes longer there are fewer runs
_FEWEST = 3
_IN_A_ROW = 20
_SHORT = 0.02  # seconds: calls below it are also timed without waiting for each


def timed(call: Callable[[], Any]) -> float:
    """Seconds until all of the result is there."""
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def peak_bytes() -> int | None:
    """The most memory this process has had on the device; None where the platform does not say."""
    stats = jax.devices()[0].memory_stats()
    return None if stats is None else int(stats["peak_bytes_in_use"])


def timings(call: Callable[[], Any], runs: int) -> dict[str, Any]:
    """Seconds of a call that has been compiled."""
    first = timed(call)
    seconds = [timed(call) for _ in range(max(min(runs, int(_PATIENCE / max(first, 1e-9))), _FEWEST))]
    found = {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "runs": len(seconds),
    }
    if found["seconds"] < _SHORT:
        found["seconds in a row"] = timed(lambda: [call() for _ in range(_IN_A_ROW)]) / _IN_A_ROW
    return found


class Sampled:
    """One sample on the device; what only some calls need is brought there when it is asked for."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.sample = job["sample"]
        self.n = self.sample["n"]
        self.pos = jnp.asarray(samples.positions(self.sample, Path(job["folder"])))

    def arguments(self, what: str, options: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in options.items() if name != "b"}
        if "b" in options:
            given["rlink"] = linking_length(options["b"], self.n, samples.side(self.sample))
        if what == "catalogue":
            given |= {"mass": jnp.asarray(samples.masses(self.n)), "vel": jnp.asarray(samples.velocities(self.n))}
        if what == "query":
            given["query"] = jnp.asarray(samples.uniform(self.n, samples.SEED + 3))
        return given


def measured(library: Library, sample: Sampled, what: str, options: dict[str, Any], runs: int) -> dict[str, Any]:
    """Time, memory and digest of a call, with the first effort that succeeds."""
    arguments = sample.arguments(what, options)
    failed: list[tuple[float, str]] = []
    for effort in library.efforts():
        call = getattr(library, what)(sample.pos, effort, **arguments)
        try:
            start = time.perf_counter()
            out = jax.block_until_ready(call())
            found: dict[str, Any] = {"first call": time.perf_counter() - start, "peak_bytes": peak_bytes()}
            found |= {"effort": effort, "efforts that failed": failed, "digest": digest(what, out)}
            del out
            if found["digest"]["finite"]:
                return found | timings(call, runs)
            failed.append((effort, "the result is not finite"))
        except Exception as error:
            failed.append((effort, one_line(error)))
    return {"error": failed[0][1], "efforts that failed": failed}


def main() -> None:
    job = json.loads(sys.argv[1])
    library = opened(job["library"])
    if not comes_from(library, Path(job["home"])):
        raise ImportError(f"{library.package} was not imported from {job['home']}")
    sample = Sampled(job)
    for call in job["calls"]:
        what, options = call["what"], call["options"]
        with contextlib.suppress(BrokenPipeError):
            if what == "stages":
                found: dict[str, Any] = {"stages": stages.apart(sample.pos, samples.side(sample.sample), job["runs"])}
            elif what == "distances":
                found = stages.distances(sample.pos, **options)
            else:
                found = measured(library, sample, what, options, job["runs"])
            tell(key=call["key"], **found)


if __name__ == "__main__":
    main()
