"""The same tasks with other libraries, each as a call that builds its tree and searches. None: not installed.

All use as many threads as our library, unless another number is given, and Corrfunc its instruction set.
"""

# ruff: noqa: PLC0415 - every peer is optional
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from timing import Call

from jztree import kernels

Peers = dict[str, Call | None]
# Corrfunc's names of our instruction sets.
_CORRFUNC_SETS = {"x86-64-v2": "sse42", "x86-64-v3": "avx", "x86-64-v4": "avx512f"}


def our_threads() -> int:
    """Return the number of threads of one of our devices."""
    jax.devices()
    return int(kernels.native_info()["num_threads"])


def _corrfunc_set() -> str:
    return _CORRFUNC_SETS.get(kernels.native_info()["instruction_set"], "fastest")


def _if_installed(make: Callable[[], Call]) -> Call | None:
    try:
        return make()
    except ImportError:
        return None


def nanoflann(pos: np.ndarray, k: int, threads: int | None = None) -> Call | None:
    """Find the ``k`` nearest neighbours of every point, in an open box."""

    def make() -> Call:
        import pynanoflann

        def call() -> Any:
            tree = pynanoflann.KDTree(n_neighbors=k, metric="l2")
            tree.fit(pos)
            return tree.kneighbors(pos, n_jobs=threads or our_threads())

        return call

    return _if_installed(make)


def pykdtree(pos: np.ndarray, query: np.ndarray, k: int) -> Call | None:
    """Find the ``k`` nearest neighbours of each query, in an open box, with as many threads as OpenMP uses."""

    def make() -> Call:
        from pykdtree.kdtree import KDTree

        return lambda: KDTree(pos).query(query, k=k)

    return _if_installed(make)


def quitefastmst(pos: np.ndarray) -> Call | None:
    """Find the minimum spanning tree in an open box, with as many threads as OpenMP uses."""

    def make() -> Call:
        import quitefastmst

        return lambda: quitefastmst.mst_euclid(pos)

    return _if_installed(make)


def fast_hdbscan(pos: np.ndarray, min_cluster_size: int) -> Call | None:
    """Find the clusters of HDBSCAN* in an open box, with as many threads as Numba uses."""

    def make() -> Call:
        import fast_hdbscan as peer

        return lambda: peer.HDBSCAN(min_cluster_size=min_cluster_size).fit(pos).labels_

    return _if_installed(make)


def scipy(pos: np.ndarray, k: int, boxsize: float | None = None) -> Call | None:
    """Find the ``k`` nearest neighbours of every point. Positions must be inside the box."""

    def make() -> Call:
        from scipy.spatial import cKDTree

        return lambda: cKDTree(pos, boxsize=boxsize).query(pos, k=k, workers=our_threads())

    return _if_installed(make)


def scipy_counts(pos: np.ndarray, radius: float, boxsize: float) -> Call | None:
    """Count the points within a radius of every point. Positions must be inside the box."""

    def make() -> Call:
        from scipy.spatial import cKDTree

        return lambda: cKDTree(pos, boxsize=boxsize).query_ball_point(
            pos, radius, return_length=True, workers=our_threads()
        )

    return _if_installed(make)


def scipy_lists(pos: np.ndarray, radius: float, boxsize: float) -> Call | None:
    """Return the rows of the points within a radius of each point, as Python lists."""

    def make() -> Call:
        from scipy.spatial import cKDTree

        return lambda: cKDTree(pos, boxsize=boxsize).query_ball_point(pos, radius, workers=our_threads())

    return _if_installed(make)


def scipy_pairs(pos: np.ndarray, radius: float, boxsize: float) -> Call | None:
    """Return all pairs within a radius, each once and without its distance, as an array, with one thread."""

    def make() -> Call:
        from scipy.spatial import cKDTree

        return lambda: cKDTree(pos, boxsize=boxsize).query_pairs(radius, output_type="ndarray")

    return _if_installed(make)


def sklearn_dbscan(pos: np.ndarray, eps: float, min_samples: int) -> Call | None:
    """Find clusters with scikit-learn, in an open box."""

    def make() -> Call:
        from sklearn.cluster import DBSCAN

        return lambda: DBSCAN(eps=eps, min_samples=min_samples, n_jobs=our_threads()).fit(pos).labels_

    return _if_installed(make)


def corrfunc(
    pos: np.ndarray,
    edges: np.ndarray,
    boxsize: float,
    mode: str = "r",
    bins_b: int = 0,
    weight: np.ndarray | None = None,
) -> Call | None:
    """Count pairs in bins with Corrfunc, and ``bins_b`` bins of mu, or of pi in units. Positions are inside the box."""

    def make() -> Call:
        from Corrfunc import theory

        columns = list(np.ascontiguousarray(pos.T))
        options = {"boxsize": boxsize, "isa": _corrfunc_set()} | (
            {} if weight is None else {"weights1": weight, "weight_type": "pair_product"}
        )
        if mode == "rp_pi":
            return lambda: theory.DDrppi(1, our_threads(), float(bins_b), edges, *columns, **options)
        if mode == "s_mu":
            return lambda: theory.DDsmu(1, our_threads(), edges, 1.0, bins_b, *columns, **options)
        return lambda: theory.DD(1, our_threads(), edges, *columns, **options)

    return _if_installed(make)


def corrfunc_survey(
    sky: np.ndarray, distance: np.ndarray, edges: np.ndarray, mode: str, bins_b: int, dtype: Any
) -> Call | None:
    """Count pairs around the midpoint of each with Corrfunc. sky: right ascension and declination in degrees."""

    def make() -> Call:
        from Corrfunc import mocks

        columns = [np.ascontiguousarray(column, dtype) for column in (*sky.T, distance)]
        options = {"is_comoving_dist": True, "isa": _corrfunc_set()}
        if mode == "rp_pi":
            return lambda: mocks.DDrppi_mocks(1, 1, our_threads(), float(bins_b), edges, *columns, **options)
        return lambda: mocks.DDsmu_mocks(1, 1, our_threads(), 1.0, bins_b, edges, *columns, **options)

    return _if_installed(make)


def treecorr(pos: np.ndarray, edges: np.ndarray, boxsize: float) -> Call | None:
    """Count pairs in bins of distance with TreeCorr, exactly (``bin_slop=0``). Edges are a geometric sequence."""

    def make() -> Call:
        import treecorr

        columns = dict(zip("xyz", pos.T.astype("f8"), strict=True))
        periods = dict.fromkeys(("xperiod", "yperiod", "zperiod"), boxsize)

        def call() -> Any:
            bins = {"min_sep": edges[0], "max_sep": edges[-1], "nbins": len(edges) - 1, "bin_slop": 0}
            result = treecorr.NNCorrelation(**bins, **periods)
            result.process(treecorr.Catalog(**columns), metric="Periodic", num_threads=our_threads())
            return result.npairs

        return call

    return _if_installed(make)


def vesin(pos: np.ndarray, radius: float, boxsize: float) -> Call | None:
    """List all pairs of atoms, in both directions, with shifts, distances and vectors, with vesin on one thread."""

    def make() -> Call:
        from vesin import NeighborList

        box = np.eye(3) * boxsize
        options = {"box": box, "periodic": True, "quantities": "ijSdD"}
        return lambda: NeighborList(cutoff=radius, full_list=True).compute(points=pos, **options)

    return _if_installed(make)


def matscipy(pos: np.ndarray, radius: float, boxsize: float) -> Call | None:
    """List the same pairs with matscipy on one thread."""

    def make() -> Call:
        from matscipy.neighbours import neighbour_list

        box = {"cell": np.eye(3) * boxsize, "pbc": np.ones(3, bool)}
        return lambda: neighbour_list("ijSdD", positions=pos, cutoff=radius, **box)

    return _if_installed(make)


def kdcount(pos: np.ndarray, rlink: float, boxsize: float) -> Call | None:
    """Return friends-of-friends labels of kdcount with two processes."""

    def make() -> Call:
        from kdcount import cluster, models

        return lambda: cluster.fof(models.points(pos.astype("f8"), boxsize=np.full(3, boxsize)), rlink, np=2)

    return _if_installed(make)


def lexsort(pos: np.ndarray) -> Call:
    """Sort existing Morton keys of points in the unit box, two words each, with NumPy."""
    cells = (pos.astype("f8") * 2.0**42).astype(np.uint64)
    high, low = (_interleaved(cells >> np.uint64(shift) & np.uint64((1 << 21) - 1)) for shift in (21, 0))
    return lambda: np.lexsort((low, high))


def _interleaved(cells: np.ndarray) -> np.ndarray:
    """Return Morton keys of three coordinates of 21 bits each, ``(n, 3)`` uint64 to ``(n,)``."""
    steps = (
        (32, 0x1F00000000FFFF),
        (16, 0x1F0000FF0000FF),
        (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3),
        (2, 0x1249249249249249),
    )
    key = np.zeros(len(cells), np.uint64)
    for dim in range(3):
        bits = cells[:, dim].copy()
        for shift, mask in steps:
            bits = (bits | bits << np.uint64(shift)) & np.uint64(mask)
        key |= bits << np.uint64(2 - dim)
    return key
