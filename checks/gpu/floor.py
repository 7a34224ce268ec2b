"""What the device can do at best, measured, and how long a call would take if it did nothing but what it must."""

from collections.abc import Callable
from functools import partial
from typing import Any

_COUNTED = 8  # arithmetic instructions of a squared distance in 3 dimensions: 3 differences, 3 products, 2 sums
_CHAINS, _STEPS = 4, 256
_FLOAT = 4


def bytes_to_move(what: str, n: int, k: int = 0, dims: int = 3) -> int:
    """Bytes of a call on float32 if every input is read once and every output is written once."""
    row = dims * _FLOAT
    amounts = {
        "knn": row + 2 * _FLOAT * k,
        "query": 2 * row + 2 * _FLOAT * k,
        "labels": 2 * row + _FLOAT,  # positions are returned too, in z-order
        "catalogue": 2 * (2 * row + _FLOAT),  # positions, velocities and masses come and go
        "spheres": row,
    }
    return n * amounts[what]


def seconds_at_least(floor: dict[str, float], what: str, n: int, options: dict[str, Any], distances: float) -> float:
    """The larger of the time for the bytes and that for the arithmetic. distances: to be computed, a query."""
    moving = bytes_to_move(what, n, options.get("k", 0)) / floor["copy bytes per second"]
    return max(moving, n * distances * _COUNTED / floor["instructions per second"])


def measure(small: bool) -> dict[str, float]:
    """Rates of plain JAX: bytes moved by large copies and sums, and float32 instructions a second.

    A fused multiply-add, which the library does not use, is one instruction too.
    """
    n, rows, steps = (2**16, 2**10, 16) if small else (2**28, 2**24, _STEPS)
    return {
        "copy bytes per second": 2 * _FLOAT * n / _seconds(lambda x, _: -x, n),
        "add bytes per second": 3 * _FLOAT * n / _seconds(lambda x, y: x + y, n),
        "instructions per second": _CHAINS * steps * rows / _seconds(partial(_products, steps=steps), rows),
    }


def _products(x: Any, factors: Any, steps: int) -> Any:
    """Products with a factor that the compiler does not know: nothing to be folded, nor fused with a sum. Several at
    once, so that none waits for the one before.
    """
    values = [x + i for i in range(_CHAINS)]
    for _ in range(steps):
        values = [value * factors[0] for value in values]
    return sum(values)


def _seconds(function: Callable[[Any, Any], Any], n: int) -> float:
    """Median time of a compiled function of two arrays of ``n`` numbers."""
    import jax  # noqa: PLC0415

    from .measure import timings  # noqa: PLC0415

    x, y = jax.numpy.linspace(0, 1, n), jax.numpy.full(n, 0.999)
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(x, y))
    found: float = timings(lambda: compiled(x, y), 20)["seconds"]
    return found


if __name__ == "__main__":
    import json
    import sys

    from .child import tell

    tell(key="rates", **measure(json.loads(sys.argv[1])))
