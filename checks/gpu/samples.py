"""The particles that are timed, the same for every library. Those that take long to make are kept in a folder."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

SEED = 1
_FROM_GPU = 5 * 10**8  # more particles than this are drawn on the GPU: the host would take minutes


def positions(sample: dict[str, Any], folder: Path) -> Any:
    """``(n, 3)`` float32: a NumPy array, or one of JAX if there are very many."""
    kind, n = sample["kind"], sample["n"]
    if kind == "uniform" and n > _FROM_GPU:
        import jax  # noqa: PLC0415

        return jax.random.uniform(jax.random.key(SEED), (n, 3))
    if kind == "uniform":
        return uniform(n, SEED)
    return np.load(stored(sample, folder))


def uniform(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 3), dtype=np.float32)


def velocities(n: int) -> np.ndarray:
    return np.random.default_rng(SEED + 1).standard_normal((n, 3), dtype=np.float32)


def masses(n: int) -> np.ndarray:
    return np.random.default_rng(SEED + 2).random(n, dtype=np.float32) + np.float32(0.5)


def side(sample: dict[str, Any]) -> float:
    """The length of the box."""
    return 100.0 if sample["kind"] == "snapshot" else 1.0


def stored(sample: dict[str, Any], folder: Path) -> Path:
    return folder / f"{sample['kind']}_{sample['n']}.npy"


def make(sample: dict[str, Any], folder: Path, data: Path) -> None:
    """Put a sample into ``folder``, by means of our own library; peers read it from there. data: the snapshots."""
    path = stored(sample, folder)
    if sample["kind"] == "uniform" or path.exists():
        return
    if sample["kind"] == "snapshot":
        import h5py  # noqa: PLC0415

        with h5py.File(data / "snapshot_128.hdf5") as file:
            pos = file["PartType1/Coordinates"][:].astype(np.float32)
        # Particles of the file follow each other in space, which would make sorting easier than it is.
        pos = np.random.default_rng(SEED).permutation(pos)
    else:
        from jztree_utils import ics  # noqa: PLC0415

        pos = np.asarray(ics.clustered_particles(sample["n"], seed=SEED).pos)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(path.with_suffix(".partial.npy"), pos)
    path.with_suffix(".partial.npy").rename(path)


if __name__ == "__main__":
    import json

    make(json.loads(sys.argv[1]), Path(json.loads(sys.argv[2])), Path(json.loads(sys.argv[3])))
