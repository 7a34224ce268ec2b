"""Uniform points, shared by all benchmarks."""

import numpy as np


def uniform(n: int, dims: int = 3, seed: int = 1) -> np.ndarray:
    """Return uniform positions in the unit box, ``(n, dims)`` float32."""
    return np.random.default_rng(seed).random((n, dims), dtype=np.float32)


def linking_length(b: float, n: int) -> float:
    """Return ``b`` mean particle separations of ``n`` particles in the unit box."""
    return b * n ** (-1 / 3)
