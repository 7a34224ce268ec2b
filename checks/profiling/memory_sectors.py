"""Counts the sectors of 32 bytes that kernels read and write in a GPU's memory, without a GPU.

The emulator that watches memory sees each access of each lane. The accesses of the 32 lanes of a warp at one place in
the code, between two barriers of the warp, count once per sector, like on a GPU; caches may serve them. Places are
those of the host compiler, which joins fewer accesses than nvcc. For CUB's sort and sums, the counts are the
minimum traffic of its algorithms.

It needs the emulator's library (``make test-watched`` builds it)::

    JZTREE_INSTRUCTION_SET=cuda-watched python checks/profiling/memory_sectors.py
"""

import argparse
import ctypes
import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jztree import kernels
from jztree.config import GPU_LEAF_SIZE, FofConfig, KNNConfig, TreeConfig
from jztree.fof import fof_labels
from jztree.knn import knn

_LINE = re.compile(r"sectors (read|written) by (\w+)=(\d+)")
_GROUP = 32  # queries per warp


class Sectors(NamedTuple):
    """Numbers of sectors, per particle or per group of queries."""

    read: float
    written: float


def count(call: Callable[[], Any]) -> dict[str, Sectors]:
    """Return the sectors of each kernel that a call runs."""
    library = ctypes.CDLL(kernels.native_info()["cpu_library"])
    library.jztree_emulator_counts.restype = ctypes.c_char_p
    library.jztree_emulator_watch(0, 1)
    library.jztree_emulator_counts()
    jax.block_until_ready(call())
    lines = library.jztree_emulator_counts().decode().splitlines()
    library.jztree_emulator_watch(1, 0)
    result: dict[str, dict[str, int]] = {}
    for line in lines:
        if (match := _LINE.fullmatch(line)) and int(match[3]) > 0:
            result.setdefault(match[2], {})[match[1]] = int(match[3])
    return {kernel: Sectors(counts.get("read", 0), counts.get("written", 0)) for kernel, counts in result.items()}


def count_searches(n: int, ks: list[int]) -> dict[str, Sectors]:
    """Return the sectors of the kernels that find neighbours and groups of ``n`` uniform points in a periodic unit box.

    Numbers of ``knn k`` are per group of 32 queries, the others per particle. The linking length is 0.2 mean distances,
    the usual value.
    """
    pos = jnp.asarray(np.random.default_rng(7).random((n, 3), dtype=np.float32))
    tree = TreeConfig(leaf_size=GPU_LEAF_SIZE)
    rlink, fof_cfg, knn_cfg = 0.2 * n ** (-1 / 3), FofConfig(tree=tree), KNNConfig(tree=tree)
    groups = count(lambda: fof_labels(pos, rlink, 1.0, fof_cfg))
    result = {kernel: _share(group, n) for kernel, group in groups.items()}
    for k in ks:
        result[f"knn {k}"] = _share(count(functools.partial(knn, pos, k, boxsize=1.0, cfg=knn_cfg))["knn"], n / _GROUP)
    return result


def _share(sectors: Sectors, by: float) -> Sectors:
    return Sectors(sectors.read / by, sectors.written / by)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--n", type=int, default=100_000)
    selected = parser.parse_args()
    for name, sectors in count_searches(selected.n, selected.k).items():
        print(f"{name:20}{sectors.read:12.2f} read{sectors.written:12.2f} written")


if __name__ == "__main__":
    main()
