"""What is timed: samples of particles, and calls on them. A case is one process, and one line of the record a call.

As a process, ``python -m gpu.cases KIND N FOLDER DATA``, it makes a sample.
"""

import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

KS = (4, 8, 16, 32, 64)
B = (0.2, 0.7)  # linking lengths in mean separations
PUBLISHED_K = 30  # of the published timing with separate queries
NEIGHBOURS = 30  # within the radius of questions about one
BOX = 1.0
SEED = 1
_FROM_GPU = 5 * 10**8  # more particles than this are drawn on the GPU: the host would take minutes


def power(n: int) -> str:
    """1000000 as 1e6, other numbers as they are."""
    digits = str(n)
    return f"{digits[0]}e{len(digits) - 1}" if set(digits[1:]) == {"0"} else digits


def uniform(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 3), dtype=np.float32)


def velocities(n: int) -> np.ndarray:
    return np.random.default_rng(SEED + 1).standard_normal((n, 3), dtype=np.float32)


def masses(n: int) -> np.ndarray:
    return np.random.default_rng(SEED + 2).random(n, dtype=np.float32) + np.float32(0.5)


@dataclass(frozen=True)
class Sample:
    """Particles, the same for every library: ``uniform`` or ``clustered`` in the unit box, or a ``snapshot`` of 128^3.

    Those that take long to make are kept in a folder.
    """

    kind: str
    n: int

    @property
    def name(self) -> str:
        return f"{self.kind} {power(self.n)}"

    @property
    def side(self) -> float:
        """The length of the box."""
        return 100.0 if self.kind == "snapshot" else 1.0

    def linking_length(self, b: float) -> float:
        return b * self.side / math.cbrt(self.n)

    def radius(self, neighbours: float) -> float:
        """Within which a particle of a uniform sample has so many neighbours."""
        return self.side * math.cbrt(0.75 * neighbours / (math.pi * self.n))

    def path(self, folder: Path) -> Path:
        return folder / f"{self.kind}_{self.n}.npy"

    def source(self, data: Path) -> Path:
        """What a snapshot is read from."""
        return data / "snapshot_128.hdf5"

    def is_there(self, folder: Path) -> bool:
        return self.kind == "uniform" or self.path(folder).exists()

    def positions(self, folder: Path) -> Any:
        """``(n, 3)`` float32: a NumPy array, or one of JAX if there are very many."""
        if self.kind == "uniform" and self.n > _FROM_GPU:
            import jax  # noqa: PLC0415

            return jax.random.uniform(jax.random.key(SEED), (self.n, 3))
        return uniform(self.n, SEED) if self.kind == "uniform" else np.load(self.path(folder))

    def make(self, folder: Path, data: Path) -> None:
        """Put the sample into ``folder``, by means of our own library; peers read it from there."""
        if self.is_there(folder):
            return
        if self.kind == "snapshot":
            import h5py  # noqa: PLC0415

            with h5py.File(self.source(data)) as file:
                pos = file["PartType1/Coordinates"][:].astype(np.float32)
            # Particles of the file follow each other in space, which would make sorting easier than it is.
            pos = np.random.default_rng(SEED).permutation(pos)
        else:
            from jztree_utils import ics  # noqa: PLC0415

            pos = np.asarray(ics.clustered_particles(self.n, seed=SEED).pos)
        folder.mkdir(parents=True, exist_ok=True)
        partial = self.path(folder).with_suffix(".partial.npy")
        np.save(partial, pos)
        partial.rename(self.path(folder))


@dataclass(frozen=True)
class Call:
    """One thing to time on a sample.

    what: a method of a library of `libraries`. options: its arguments besides particles.
    """

    what: str
    options: dict[str, Any] = field(default_factory=dict)

    def key(self, sample: Sample) -> str:
        options = dict(self.options)
        where = {None: [], 0.0: ["open"]}.get(options.pop("box", None), ["periodic"])
        return " ".join([self.what, sample.name, *(f"{name}={value:g}" for name, value in options.items()), *where])


@dataclass(frozen=True)
class Case:
    """Calls on one sample in one process, those that need less memory first: so the peak after each is its own."""

    sample: Sample
    calls: tuple[Call, ...]
    urgency: int
    peers: tuple[str, ...] = ()


def knn_case(kind: str, n: int, ks: Sequence[int], urgency: int) -> Case:
    calls = [Call("knn", {"k": k, "box": box}) for k in ks for box in (BOX, 0.0)]
    return Case(Sample(kind, n), tuple(calls), urgency, peers=("published", "jaxkd"))


def fof_case(kind: str, n: int, urgency: int, box: float = BOX) -> Case:
    lengths = B if kind == "uniform" else B[:1]
    calls = [Call(what, {"b": b, "box": box}) for what in ("labels", "catalogue") for b in lengths]
    return Case(Sample(kind, n), tuple(calls), urgency, peers=("published",))


def spheres_case(kind: str, n: int, box: float = BOX) -> Case:
    return Case(Sample(kind, n), (Call("spheres", {"b": B[0], "box": box}),), 3)


def stages_case(kind: str, n: int) -> Case:
    """Each kernel apart, and how many distances no search of this tree can do without."""
    return Case(Sample(kind, n), (Call("stages"), Call("distances", {"k": 16, "box": BOX})), 3)


def query_case(n: int, k: int) -> Case:
    return Case(Sample("uniform", n), (Call("query", {"k": k, "box": 0.0}),), 4, peers=("published",))


def within_case(n: int, urgency: int) -> Case:
    """Counts, sums, lists and clusters within a radius; pairs by distance need no memory, and lists need most."""
    whats = ("pair_counts", "count_within", "kernel_sums", "dbscan", "neighbours_within")
    calls = [Call(what, {"neighbours": NEIGHBOURS, "box": BOX}) for what in whats]
    return Case(Sample("uniform", n), tuple(calls), urgency)


def full() -> Iterator[Case]:
    """All cases. Those with the lowest urgency are first: what the targets are set for."""
    both = ("uniform", "clustered")
    for kind, n in itertools.product(both, (10**6, 10**7)):
        yield knn_case(kind, n, KS, 0)
        yield fof_case(kind, n, 1)
        yield stages_case(kind, n)
    for kind in both:
        yield knn_case(kind, 10**8, (16,), 2)
        yield fof_case(kind, 10**8, 2)
    yield from (spheres_case("clustered", n) for n in (10**5, 10**6, 10**7))
    yield spheres_case("snapshot", 128**3, 100.0)
    yield from (within_case(n, 3) for n in (10**6, 10**7))
    yield from (query_case(n, PUBLISHED_K) for n in (10**6, 10**7))
    yield fof_case("snapshot", 128**3, 4, 100.0)
    for kind, n in itertools.product(both, (10**4, 10**5)):
        yield knn_case(kind, n, KS, 5)
    yield from (fof_case(kind, 10**5, 5) for kind in both)
    yield Case(Sample("uniform", 10**9), (Call("labels", {"b": B[0], "box": BOX}),), 6)


def quick() -> Iterator[Case]:
    """One small case of each kind, to try the script itself."""
    yield knn_case("uniform", 2000, (4, 8), 0)
    yield fof_case("clustered", 2000, 1)
    yield stages_case("uniform", 2000)
    yield spheres_case("clustered", 2000)
    yield within_case(2000, 3)
    yield query_case(1000, 5)


def listed(small: bool, words: Sequence[str] = ()) -> list[Case]:
    """Cases in the order in which they are run; only calls whose keys contain one of ``words``, if there are any."""
    kept = []
    for case in sorted(quick() if small else full(), key=lambda case: case.urgency):
        calls = [call for call in case.calls if not words or any(word in call.key(case.sample) for word in words)]
        kept += [Case(case.sample, tuple(calls), case.urgency, case.peers)] if calls else []
    return kept


if __name__ == "__main__":
    _kind, _n, _folder, _data = map(json.loads, sys.argv[1:])
    Sample(_kind, _n).make(Path(_folder), Path(_data))
