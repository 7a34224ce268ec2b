"""Speed on one CPU compared with other libraries: a table of typical tasks, and time against N, k and threads.

    python checks/benchmarks/against_peers.py [--snapshot FILE] [--record] [--plots FOLDER] [--quick] [--only TEXT]
    JZTREE_INSTRUCTION_SET=x86-64-v3 taskset -c 0 python checks/benchmarks/against_peers.py --cpu [...]

Unless a case says otherwise, the input is float32. It is in random order. Results are in input order, and times include
the tree. Each case alternates with its peers in one process, after compilation, because shared machines drift. Ratios
are ratios of medians, or of the shortest CPU times of five calls with --cpu. The machine should otherwise be idle:
other programs slow some libraries more than others, even in CPU seconds. Peers that are not installed are skipped
(``pip install --group benchmark`` installs them).
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import draw
import jax
import numpy as np
import peers
from inputs import linking_length, uniform
from timing import Call, append_record, least_cpu_seconds, machine, seconds, timed

import jztree as jz
from jztree_utils import hdbscan, ics, io

HISTORY = Path(__file__).parents[1] / "results" / "against_peers.jsonl"


@dataclass
class Case:
    """One row of the table: ``ours`` against ``theirs`` of ``peer``, and the minimum ratio that we aim at.

    Attributes:
        theirs: The call of the peer; None if the peer is not installed.
    """

    name: str
    ours: Call
    peer: str
    theirs: Call | None
    aim: float
    runs: int = 3


def neighbours(pos: np.ndarray, k: int, **options: Any) -> Call:
    """Return our search for the neighbours of every point."""
    x = jax.numpy.asarray(pos)
    return lambda: jz.knn.knn.jit(x, k=k, **options)


def labels(pos: np.ndarray, rlink: float, boxsize: float) -> Call:
    """Return our friends-of-friends labels in input order."""
    x = jax.numpy.asarray(pos)
    return lambda: jz.fof.fof_labels.jit(x, rlink, boxsize, output_order="input")[1]


def snapshot_positions(path: Path | None) -> tuple[np.ndarray, float]:
    """Return positions ``(n, 3)`` of a snapshot in random order, and its box size."""
    if path is None:
        part, boxsize = ics.cosmo_3d_sample()
    else:
        part, header = io.read_snapshot(path)
        boxsize = float(np.max(header.boxsize))
    pos = np.asarray(part.pos, np.float32)
    return pos[np.random.default_rng(2).permutation(len(pos))], float(boxsize)


def knn_cases(large: int) -> Iterator[Case]:
    """Yield searches for neighbours of uniform points."""
    aims = ((1, 7.0), (2, 4.5), (8, 6.0), (33, 6.5), (64, 6.5), (100, 6.5), (300, 13.0))
    cases = ((10**6, 8, 14.0), (large, 8, 5.0), (10**6, 16, 4.0), (10**6, 32, 3.5))
    for n, k, aim in (*((10**5, k, aim) for k, aim in aims), *cases):
        pos, runs = uniform(n), 9 if n < 10**6 else 3 if n == 10**6 else 1
        yield Case(f"kNN {n:.0e}, k={k}", neighbours(pos, k), "nanoflann", peers.nanoflann(pos, k), aim, runs)
    pos, query = uniform(10**6), uniform(10**6, seed=3)
    ours = neighbours(pos, 8, part_query=jax.numpy.asarray(query))
    yield Case("kNN 1e+06 separate queries, k=8", ours, "pykdtree", peers.pykdtree(pos, query, 8), 6.0)
    for n, dims, k, aim in ((10**6, 2, 8, 4.0), (200_000, 6, 16, 2.0)):
        pos = uniform(n, dims)
        yield Case(f"kNN {n:.0e} in {dims}D, k={k}", neighbours(pos, k), "nanoflann", peers.nanoflann(pos, k), aim)


def fof_cases() -> Iterator[Case]:
    """Yield friends-of-friends of uniform points in a periodic box."""
    pos = uniform(10**6)
    for b, aim in ((0.2, 7.0), (0.7, 10.0)):
        rlink = linking_length(b, len(pos))
        yield Case(f"FoF 1e+06, b={b}", labels(pos, rlink, 1.0), "kdcount", peers.kdcount(pos, rlink, 1.0), aim)


def tree_cases() -> Iterator[Case]:
    """Yield minimum spanning trees of uniform points in an open box."""
    for n, dims, aim in ((2_500_000, 2, 5.0), (10**6, 3, 6.0)):
        pos = uniform(n, dims)
        peer_call = peers.quitefastmst(pos.astype("f8"))
        yield Case(f"minimum spanning tree {n:.1e} in {dims}D", spanning_tree(pos), "quitefastmst", peer_call, aim)


def cluster_cases() -> Iterator[Case]:
    """Yield HDBSCAN* of points in an open box; half are in clumps."""
    n, rng = 10**6, np.random.default_rng(6)
    clumps = rng.random((200, 3))[rng.integers(0, 200, n // 2)] + 0.01 * rng.standard_normal((n // 2, 3))
    pos = rng.permutation(np.concatenate([clumps, rng.random((n // 2, 3))]))
    peer_call = peers.fast_hdbscan(pos, 20)
    yield Case("HDBSCAN 1e+06, min_cluster_size=20, float64", clusters(pos, 20), "fast_hdbscan", peer_call, 8.0, 1)


def clusters(pos: np.ndarray, min_cluster_size: int) -> Call:
    """Return our HDBSCAN* in an open box."""

    def found() -> Any:
        with jax.enable_x64(True):
            tree = jz.spanning_tree.jit(pos, core_k=min_cluster_size)
            return hdbscan.hdbscan(jz.dendrogram.jit(tree), min_cluster_size).labels

    return found


def peak_cases() -> Iterator[Case]:
    """Yield the peaks of a density of uniform points, which may take at most twice as long as the neighbours alone."""
    pos = uniform(10**6)
    for k in (8, 16):
        alone = neighbours(pos, k, boxsize=1.0)
        yield Case(f"density peaks 1e+06, k={k}", density_peaks(pos, k), "own kNN", alone, 0.5)


def density_peaks(pos: np.ndarray, k: int) -> Call:
    """Return our density peaks in a periodic box of length 1."""
    x = jax.numpy.asarray(pos)
    density = jz.density.knn_density.jit(x, k, boxsize=1.0)
    return lambda: jz.density_peaks.jit(x, density, k, boxsize=1.0)


def spanning_tree(pos: np.ndarray) -> Call:
    """Return our minimum spanning tree in an open box."""
    x = jax.numpy.asarray(pos)
    return lambda: jz.spanning_tree.jit(x)


def radius_cases() -> Iterator[Case]:
    """Yield uniform points in a periodic box, with 30 neighbours on average, and clusters in an open box."""
    n = 10**6
    pos, radius = uniform(n), (30 / n * 3 / (4 * np.pi)) ** (1 / 3)
    x, inside = jax.numpy.asarray(pos), pos.astype("f8")
    counts = lambda: jz.radius.count_within.jit(x, radius, boxsize=1.0)  # noqa: E731
    lists = lambda: jz.radius.neighbours_within.jit(x, radius, boxsize=1.0)  # noqa: E731
    yield Case("counts within r, 1e+06", counts, "scipy", peers.scipy_counts(inside, radius, 1.0), 15.0)
    yield Case("lists within r, 1e+06", lists, "scipy", peers.scipy_lists(inside, radius, 1.0), 10.0, 1)
    yield Case("lists within r, 1e+06, beside pairs", lists, "scipy", peers.scipy_pairs(inside, radius, 1.0), 10.0)
    once = lambda: jz.radius.pairs_within.jit(x, radius, boxsize=1.0, quantities="ij")  # noqa: E731
    yield Case("pairs within r, 1e+06, rows alone", once, "scipy", peers.scipy_pairs(inside, radius, 1.0), 10.0)
    lengths = jz.density.smoothing_length.jit(x, 60, boxsize=1.0)
    sums = lambda: jz.radius.kernel_sums.jit(x, lengths, boxsize=1.0)  # noqa: E731
    by_neighbours = lambda: jz.density.sph_density.jit(x, 60, boxsize=1.0)  # noqa: E731
    yield Case("kernel sums, 1e+06, 60 neighbours", sums, "own sph_density", by_neighbours, 1.0, 1)
    for points in (uniform(200_000), pos):
        eps = (12 / len(points) * 3 / (4 * np.pi)) ** (1 / 3)
        peer_call = peers.sklearn_dbscan(points.astype("f8"), eps, 10)
        yield Case(f"DBSCAN {len(points):.0e}, min_samples=10", dbscan(points, eps), "scikit-learn", peer_call, 10.0, 1)


def dbscan(pos: np.ndarray, eps: float) -> Call:
    """Return our density-based clusters in an open box."""
    x = jax.numpy.asarray(pos)
    return lambda: jz.dbscan.jit(x, eps, min_samples=10)


def pairs(pos: np.ndarray, edges: np.ndarray, boxsize: float, **options: Any) -> Call:
    """Return our pairs in bins."""

    def counted() -> Any:
        with jax.enable_x64(pos.dtype == np.float64):
            return jz.radius.pair_counts.jit(pos, edges, boxsize=boxsize, **options)

    return counted


def pair_cases(path: Path | None) -> Iterator[Case]:
    """Yield pairs up to a twentieth of a periodic box in bins of one or two quantities, of points and a snapshot."""
    box, edges = 800.0, np.geomspace(0.8, 40.0, 21)
    pos = (uniform(10**6) * np.float32(box)).astype(np.float32) % np.float32(box)
    for mode, bins_b, bins in (("r", 0, "20 bins"), ("rp_pi", 40, "(rp, pi) 20 x 40"), ("s_mu", 40, "(s, mu) 20 x 40")):
        seconds_b = {"r": None, "rp_pi": np.arange(41.0), "s_mu": np.arange(41) / 40}[mode]
        for weight, how in ((None, ""), (np.random.default_rng(4).random(len(pos), np.float32), " with weights")):
            ours = pairs(pos, edges, box, mode=mode, edges_b=seconds_b, weights=weight)
            there = peers.corrfunc(pos, edges, box, mode, bins_b, weight)
            yield Case(f"pair counts 1e+06{how}, {bins}", ours, "Corrfunc", there, 1.5)
    pos, boxsize = snapshot_positions(path)
    pos, edges = np.mod(pos, np.float32(boxsize)), boxsize * np.geomspace(0.001, 0.2, 21)
    ours, label = pairs(pos, edges, boxsize), f"pair counts snapshot of {len(pos):,}, 0.001 to 0.2 of the box"
    yield Case(label, ours, "Corrfunc", peers.corrfunc(pos, edges, boxsize), 1.5, 1)
    yield Case(f"{label}; bin_slop=0", ours, "TreeCorr", peers.treecorr(pos, edges, boxsize), 5.0, 1)


def pair_cases_in_both_precisions() -> Iterator[Case]:
    """Yield pairs of a clustered periodic box, and of a survey with the line of sight to the midpoint of each pair."""
    rng, box, n, edges = np.random.default_rng(5), 100.0, 110592, np.geomspace(0.1, 25.0, 21)
    clumps, size = rng.random((n // 64, 3)), rng.lognormal(-5, 1, (n // 64, 1))
    of = rng.integers(0, n // 64, n)
    pos = box * np.mod(clumps[of] + size[of] * rng.standard_normal((n, 3)) * (rng.random((n, 1)) > 0.25), 1)
    sky = np.stack([rng.uniform(0, 60, 30000), np.degrees(np.arcsin(rng.uniform(0.3, 0.9, 30000)))], axis=1)
    distance = 500 * rng.uniform(0.1, 1, 30000) ** (1 / 3)
    for dtype in (np.float32, np.float64):
        inside = np.minimum(pos.astype(dtype), np.nextafter(dtype(box), dtype(0)))
        weight, kind = rng.random(n).astype(dtype), np.dtype(dtype).name
        for mode, bins_b, heavy in (("r", 0, False), ("rp_pi", 40, False), ("s_mu", 40, False), ("rp_pi", 40, True)):
            seconds_b = {"r": None, "rp_pi": np.arange(41.0), "s_mu": np.arange(41) / 40}[mode]
            given = weight if heavy else None
            ours = pairs(inside, edges, box, mode=mode, edges_b=seconds_b, weights=given)
            name = f"pair counts of a clustered box, {mode}, {kind}{', weights' if heavy else ''}"
            aim = 1.5 if dtype is np.float64 and not heavy else 2.0
            yield Case(name, ours, "Corrfunc", peers.corrfunc(inside, edges, box, mode, bins_b, given), aim)
        places = survey_positions(sky, distance).astype(dtype)
        for mode, bins_b, outer in (("rp_pi", 60, 40.0), ("s_mu", 20, 80.0)):
            edges_b, rp = (np.arange(61.0), np.arange(21) / 20)[mode == "s_mu"], np.geomspace(1, outer, 21)
            ours = pairs(places, rp, 0.0, mode=mode, edges_b=edges_b, los="midpoint")
            peer_call = peers.corrfunc_survey(sky, distance, rp, mode, bins_b, dtype)
            yield Case(f"pair counts of a survey, {mode}, {kind}", ours, "Corrfunc", peer_call, 2.0)


def survey_positions(sky: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Return positions around the observer, from right ascension and declination in degrees."""
    ra, dec = np.radians(sky).T
    return distance[:, None] * np.stack([np.cos(dec) * np.cos(ra), np.cos(dec) * np.sin(ra), np.sin(dec)], axis=1)


def atom_cases() -> Iterator[Case]:
    """Yield pairs of atoms in a periodic box, in both directions, with shifts and vectors; 50 neighbours each."""
    n = 10**5
    pos, radius = uniform(n).astype("f8"), (50 / n * 3 / (4 * np.pi)) ** (1 / 3)
    x = jax.numpy.asarray(pos, np.float32)
    ours = lambda: jz.radius.pairs_within.jit(x, radius, boxsize=1.0, full=True)  # noqa: E731
    for name in ("vesin", "matscipy"):
        peer_call = getattr(peers, name)(pos, radius, 1.0)
        yield Case(f"pairs of atoms, 1e+05, full list; {name}", ours, name, peer_call, 3.0)


def snapshot_cases(path: Path | None) -> Iterator[Case]:
    """Yield searches of a snapshot in its periodic box."""
    pos, boxsize = snapshot_positions(path)
    n, rlink, x = len(pos), boxsize * linking_length(0.2, len(pos)), jax.numpy.asarray(pos)
    inside = np.mod(pos.astype("f8"), boxsize)
    ours = neighbours(pos, 8, boxsize=boxsize)
    yield Case(f"kNN snapshot of {n:,}, k=8, periodic", ours, "scipy", peers.scipy(inside, 8, boxsize), 12.0)
    yield Case(
        f"FoF snapshot of {n:,}, b=0.2, with catalogue; labels only",
        lambda: jz.fof.fof_and_catalogue.jit(x, rlink, boxsize),
        "kdcount",
        peers.kdcount(inside, rlink, boxsize),
        6.0,
    )


def sort_case(n: int) -> Case:
    """Return the z-sort, including keys and moves of positions, against a sort of existing keys."""
    pos = uniform(n)
    x = jax.numpy.asarray(pos)
    return Case(f"z-sort {n:.0e}", lambda: jz.tree.zsort.jit(x), "lexsort", peers.lexsort(pos), 8.0)


def table(snapshot: Path | None, large: int, only: str, cpu: bool) -> Iterator[dict[str, Any]]:
    """Measure in order the rows of the table whose names contain the text ``only``. cpu: in CPU seconds of 5 runs."""
    radius = (radius_cases(), atom_cases(), pair_cases(snapshot), pair_cases_in_both_precisions())
    groups = fof_cases(), tree_cases(), cluster_cases(), peak_cases()
    for cases in (knn_cases(large), *groups, *radius, snapshot_cases(snapshot), [sort_case(large)]):
        for case in cases:
            if only not in case.name:
                continue
            peer_calls = {} if case.theirs is None else {case.peer: case.theirs}
            calls = {"jztree": case.ours} | peer_calls
            result = least_cpu_seconds(calls, 5) if cpu else seconds(calls, case.runs)
            name = f"{case.name}, CPU seconds" if cpu else case.name
            row: dict[str, Any] = {"case": name, "seconds": result, "aim": case.aim, "peer": case.peer}
            if peer_calls:
                row["ratio"] = result[case.peer] / result["jztree"]
            yield row


class Sweep:
    """Times against one number. After a call longer than ``patience`` seconds, a library skips larger numbers."""

    def __init__(self, title: str, axis: str, patience: float = 10.0) -> None:
        self.points: list[dict[str, Any]] = []
        self._patience = patience
        self._what, self._axis, self._slow = title, axis, set[str]()

    def add(self, value: int, calls: peers.Peers) -> None:
        """Time the calls at a value of the axis. Values should ascend."""
        peer_calls = {name: call for name, call in calls.items() if call is not None and name not in self._slow}
        for name, result in seconds(peer_calls, 3).items():
            self.points.append({"what": self._what, "library": name, self._axis: value, "seconds": result})
            if result > self._patience:
                self._slow.add(name)


def against_n(numbers: list[int]) -> list[dict[str, Any]]:
    """Measure kNN with k = 8 and friends-of-friends against the number of uniform points."""
    knn, fof = Sweep("kNN, k=8", "n", 1.0), Sweep("FoF, b=0.2", "n", 1.0)  # the next n takes ten times as long
    for n in numbers:
        pos, rlink = uniform(n), linking_length(0.2, n)
        calls = {"nanoflann": peers.nanoflann(pos, 8), "pykdtree": peers.pykdtree(pos, pos, 8)}
        knn.add(n, {"jztree": neighbours(pos, 8)} | calls | {"scipy": peers.scipy(pos, 8)})
        fof.add(n, {"jztree": labels(pos, rlink, 1.0), "kdcount": peers.kdcount(pos, rlink, 1.0)})
    return knn.points + fof.points


def against_k(numbers: list[int]) -> list[dict[str, Any]]:
    """Measure kNN of 1e6 uniform points against k."""
    sweep, pos = Sweep("kNN, n=1e6", "k"), uniform(10**6)
    for k in numbers:
        sweep.add(k, {"jztree": neighbours(pos, k), "nanoflann": peers.nanoflann(pos, k)})
    return sweep.points


def against_threads() -> list[dict[str, Any]]:
    """Measure kNN and friends-of-friends of 1e6 uniform points against threads."""
    pos, points = uniform(10**6), []
    largest = jz.kernels.native_info()["num_threads"]
    for threads in (*(2**i for i in range(largest.bit_length()) if 2**i < largest), largest):
        jz.kernels.set_num_threads(threads)
        knn, fof = Sweep("kNN, n=1e6, k=8", "threads"), Sweep("FoF, n=1e6, b=0.2", "threads")
        knn.add(threads, {"jztree": neighbours(pos, 8), "nanoflann": peers.nanoflann(pos, 8, threads)})
        fof.add(threads, {"jztree": labels(pos, linking_length(0.2, len(pos)), 1.0)})
        points += knn.points + fof.points
    jz.kernels.set_num_threads(None)
    return points


def small() -> dict[str, float]:
    """Measure the fixed costs: a call on 1000 points, and compilation."""
    points, part = uniform(1000), jax.numpy.asarray(uniform(9973))
    calls = {"call on 1000 points, kNN": neighbours(points, 8), "call on 1000 points, FoF": labels(points, 0.02, 1.0)}
    result = seconds(calls, 200)
    first = {
        "compile kNN": lambda: jz.knn.knn.jit(part, k=7),
        "compile fof_and_catalogue": lambda: jz.fof.fof_and_catalogue.jit(part, 0.01),
    }
    return result | {name: timed(call) - timed(call) for name, call in first.items()}


def show(row: dict[str, Any]) -> None:
    """Print a row of the table."""
    times = ", ".join(f"{name} {value:.3g} s" for name, value in row["seconds"].items())
    ratio = f"{row['ratio']:.1f} times as fast as {row['peer']} (at least {row['aim']:g})" if "ratio" in row else ""
    print(f"{row['case']:<58} {times:<42} {ratio}", flush=True)


def main() -> None:
    """Measure, print, and save and plot if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshot", type=Path, help="the snapshot of the table (default: the sample of 48^3)")
    parser.add_argument("--record", action="store_true", help=f"append the results to {HISTORY.name}, one line per run")
    parser.add_argument("--plots", type=Path, help="draw time against N, k and threads in this folder")
    parser.add_argument("--quick", action="store_true", help="measure only the table, with at most 1e6 points")
    parser.add_argument("--only", default="", help="measure only the rows of the table whose names contain this text")
    parser.add_argument("--cpu", action="store_true", help="compare CPU seconds in the table")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), "small": small(), "table": [], "sweeps": []}
    print(json.dumps(results["machine"]))
    for name, value in results["small"].items():
        print(f"{name}: {value * 1000:.3g} ms")
    for row in table(arguments.snapshot, 10**6 if arguments.quick else 10**7, arguments.only, arguments.cpu):
        results["table"].append(row)
        show(row)
    if not arguments.quick and not arguments.only:
        results["sweeps"] += against_threads() + against_k([4, 8, 16, 32, 64]) + against_n([10**4, 10**5, 10**6, 10**7])
    if arguments.record:
        append_record(HISTORY, results)
    if arguments.plots and results["sweeps"]:
        draw.sweeps(results, arguments.plots)


if __name__ == "__main__":
    main()
