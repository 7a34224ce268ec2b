"""The timed cases: samples of particles, and calls on them. A case is one process, and a call one line of the record.

The process ``python -m gpu.cases KIND N FOLDER DATA`` makes a sample.
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
NEIGHBOURS = 30  # average number within the radius of fixed-radius searches
BOX = 1.0
SEED = 1
_FROM_GPU = 5 * 10**8  # generate more particles than this on the GPU, because the host would take minutes


def power(n: int) -> str:
    """Return 1000000 as 1e6, and other numbers unchanged."""
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

    Samples that take long to make are stored in a folder.
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
        """Return the radius that contains ``neighbours`` neighbours in a uniform sample."""
        return self.side * math.cbrt(0.75 * neighbours / (math.pi * self.n))

    def path(self, folder: Path) -> Path:
        return folder / f"{self.kind}_{self.n}.npy"

    def source(self, data: Path) -> Path:
        """Return the file of a snapshot."""
        return data / "snapshot_128.hdf5"

    def is_there(self, folder: Path) -> bool:
        return self.kind == "uniform" or self.path(folder).exists()

    def positions(self, folder: Path) -> Any:
        """Return ``(n, 3)`` float32 as a NumPy array, or as a JAX array if there are very many."""
        if self.kind == "uniform" and self.n > _FROM_GPU:
            import jax  # noqa: PLC0415

            return jax.random.uniform(jax.random.key(SEED), (self.n, 3))
        return uniform(self.n, SEED) if self.kind == "uniform" else np.load(self.path(folder))

    def make(self, folder: Path, data: Path) -> None:
        """Write the sample to ``folder`` with our own library; peers read it from there."""
        if self.is_there(folder):
            return
        if self.kind == "snapshot":
            import h5py  # noqa: PLC0415

            with h5py.File(self.source(data)) as file:
                pos = file["PartType1/Coordinates"][:].astype(np.float32)
            # Particles in the file are spatially ordered, which would make sorting unrealistically easy.
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
    """One timed call on a sample.

    Attributes:
        what: Name of a method of the libraries in `libraries`.
        options: Arguments of the method other than particles.
    """

    what: str
    options: dict[str, Any] = field(default_factory=dict)

    def key(self, sample: Sample) -> str:
        options = dict(self.options)
        where = {None: [], 0.0: ["open"]}.get(options.pop("box", None), ["periodic"])
        return " ".join([self.what, sample.name, *(f"{name}={value:g}" for name, value in options.items()), *where])


@dataclass(frozen=True)
class Case:
    """Calls on one sample in one process, in order of memory, so that each call sets its own peak."""

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
    """Return each kernel separately, and the number of distances that no search of this tree can omit."""
    return Case(Sample(kind, n), (Call("stages"), Call("distances", {"k": 16, "box": BOX})), 3)


def query_case(n: int, k: int) -> Case:
    return Case(Sample("uniform", n), (Call("query", {"k": k, "box": 0.0}),), 4, peers=("published",))


def within_case(n: int, urgency: int) -> Case:
    """Return counts, sums, clusters and lists within a radius. Pair counts need no memory, and lists need most."""
    whats = ("pair_counts", "count_within", "kernel_sums", "dbscan", "neighbours_within")
    calls = [Call(what, {"neighbours": NEIGHBOURS, "box": BOX}) for what in whats]
    return Case(Sample("uniform", n), tuple(calls), urgency)


def full() -> Iterator[Case]:
    """Yield all cases. Cases with the lowest urgency value, for which targets are set, run first."""
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
    """Yield one small case of each kind, to test the script itself."""
    yield knn_case("uniform", 2000, (4, 8), 0)
    yield fof_case("clustered", 2000, 1)
    yield stages_case("uniform", 2000)
    yield spheres_case("clustered", 2000)
    yield within_case(2000, 3)
    yield query_case(1000, 5)


def listed(small: bool, words: Sequence[str] = ()) -> list[Case]:
    """Return cases in order of execution. With ``words``, keep only calls whose keys contain a word."""
    kept = []
    for case in sorted(quick() if small else full(), key=lambda case: case.urgency):
        calls = [call for call in case.calls if not words or any(word in call.key(case.sample) for word in words)]
        kept += [Case(case.sample, tuple(calls), case.urgency, case.peers)] if calls else []
    return kept


if __name__ == "__main__":
    _kind, _n, _folder, _data = map(json.loads, sys.argv[1:])
    Sample(_kind, _n).make(Path(_folder), Path(_data))
