"""The inputs on which results are compared, for processes with and without JAX."""

import itertools
from collections.abc import Iterator
from typing import Any

KS = (1, 8, 16, 32, 64, 300)


def input_of(n: int, dims: int, dtype: str, kind: str, box: str, ks: list[int]) -> dict[str, Any]:
    return {"n": n, "dims": dims, "dtype": dtype, "kind": kind, "box": box, "ks": [k for k in ks if k <= n]}


def inputs(small: bool) -> Iterator[dict[str, Any]]:
    """Yield the inputs to compare, many small ones before a few large ones; ``small`` yields only a few."""
    kinds = list(itertools.product((3, 2), ("float32", "float64"), ("uniform", "clustered"), ("periodic", "open")))
    for n in (0, 400) if small else (0, 1, 31, 10_000):
        for kind in kinds[: 2 if small else None]:
            yield input_of(n, *kind, list(KS[: 2 if small else None]))
    for kind in kinds[: 0 if small else None]:
        yield input_of(10**6, *kind, [16] if kind[0] == 3 else [8])


def key_of(job_input: dict[str, Any]) -> str:
    return f"{job_input['kind']} n={job_input['n']} {job_input['dims']}d {job_input['dtype']} {job_input['box']}"
