"""The timed cases: calls on samples of particles. A case is one process, and a call one line of the record."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .calls import CALLS, NEIGHBOURS
from .samples import Sample

KS = (4, 8, 16, 32, 64)
B = (0.2, 0.7)  # linking lengths in mean separations
PUBLISHED_K = 30  # of the published timing with separate queries: 14 ms for 1e6 and 120 ms for 1e7 particles on an A100
FIGURE_KS = (PUBLISHED_K, 8, 16, 64)
BOX = 1.0
FIGURES = -1  # the urgency value of the figures to beat, which have a stage of their own
HEADLINES = 1  # the highest urgency value of cases that are also timed without command buffers


@dataclass(frozen=True)
class Call:
    """One timed call on a sample.

    Attributes:
        what: A key of `calls.CALLS`, or a measurement of `measure`: stages or distances.
        options: Arguments of the call other than particles.
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


def compared(urgency: int, *peers: str) -> tuple[str, ...]:
    """Return what to time next to this library; cases with targets are also timed without command buffers."""
    return ("unrecorded", *peers) if urgency <= HEADLINES else peers


def knn_case(kind: str, n: int, ks: Sequence[int], urgency: int) -> Case:
    calls = [Call("knn", {"k": k, "box": box}) for k in ks for box in (BOX, 0.0)]
    return Case(Sample(kind, n), tuple(calls), urgency, peers=compared(urgency, "published", "jaxkd"))


def fof_case(kind: str, n: int, urgency: int, box: float = BOX) -> Case:
    lengths = B if kind == "uniform" else B[:1]
    calls = [Call(name, {"b": b, "box": box}) for name in ("labels", "catalogue") for b in lengths]
    return Case(Sample(kind, n), tuple(calls), urgency, peers=compared(urgency, "published"))


def spheres_case(kind: str, n: int, box: float = BOX) -> Case:
    return Case(Sample(kind, n), (Call("spheres", {"b": B[0], "box": box}),), 3)


def stages_case(kind: str, n: int) -> Case:
    """Return each kernel separately, and the number of distances that no search of this tree can omit."""
    return Case(Sample(kind, n), (Call("stages"), Call("distances", {"k": 16, "box": BOX})), 3)


def within_case(n: int, urgency: int) -> Case:
    """Return all calls with a fixed radius."""
    whats = [name for name, call in CALLS.items() if call.fixed_radius]
    calls = [Call(name, {"neighbours": NEIGHBOURS, "box": BOX}) for name in whats]
    return Case(Sample("uniform", n), tuple(calls), urgency)


def few_queries_case(n: int, urgency: int) -> Case:
    """Return searches for 1 to 1e5 separate queries."""
    calls = [
        Call(name, {**options, "queries": queries, "box": BOX})
        for name, options in (("query", {"k": 8}), ("count_within", {"neighbours": NEIGHBOURS}))
        for queries in (1, 1000, 10**4, 10**5)
    ]
    return Case(Sample("uniform", n), tuple(calls), urgency)


def figures(small_n: int, large_n: int, ks: Sequence[int]) -> Iterator[Case]:
    """Yield the figures to beat: few and many particles, with the published number of neighbours first."""
    for n in (small_n, large_n):
        sample, peers = Sample("uniform", n), compared(FIGURES, "published")
        yield Case(sample, tuple(Call("query", {"k": k, "box": 0.0}) for k in ks), FIGURES, peers)
        yield Case(sample, tuple(Call("knn", {"k": k, "box": BOX}) for k in ks), FIGURES, peers)
    yield Case(Sample("uniform", large_n), (Call("labels", {"b": B[0], "box": BOX}),), FIGURES, peers)


def between_figures(small: bool) -> Iterator[Case]:
    """Yield calls that no figure covers: sizes between the powers of ten, and calls not yet timed with the peer."""
    sizes = (400, 630) if small else (400_000, 630_000, 2 * 10**6, 4 * 10**6, 6 * 10**6)
    small_n, large_n = (1000, 2000) if small else (10**6, 10**7)
    for n in (*sizes, large_n):
        yield Case(Sample("uniform", n), (Call("knn", {"k": 8, "box": BOX}),), 2, ("published",))
    calls = (Call("knn", {"k": 64, "box": BOX}), Call("labels", {"b": B[0], "box": BOX}))
    yield Case(Sample("uniform", small_n), calls, 2, ("published",))


def full() -> Iterator[Case]:
    """Yield all cases. Cases with the lowest urgency value, for which targets are set, run first."""
    both = ("uniform", "clustered")
    yield from figures(10**6, 10**7, FIGURE_KS)
    for kind, n in itertools.product(both, (10**6, 10**7)):
        yield knn_case(kind, n, KS, 0)
        yield fof_case(kind, n, 1)
        yield stages_case(kind, n)
    yield from between_figures(small=False)
    for kind in both:
        yield knn_case(kind, 10**8, (16,), 2)
        yield fof_case(kind, 10**8, 2)
    yield from (spheres_case("clustered", n) for n in (10**5, 10**6, 10**7))
    yield spheres_case("snapshot", 128**3, 100.0)
    yield from (within_case(n, 3) for n in (10**6, 10**7))
    yield few_queries_case(10**6, 3)
    yield fof_case("snapshot", 128**3, 4, 100.0)
    for kind, n in itertools.product(both, (10**4, 10**5)):
        yield knn_case(kind, n, KS, 5)
    yield from (fof_case(kind, 10**5, 5) for kind in both)
    yield Case(Sample("uniform", 10**9), (Call("labels", {"b": B[0], "box": BOX}),), 6)


def quick() -> Iterator[Case]:
    """Yield one small case of each kind, to test the script itself."""
    yield from figures(1000, 2000, (5, 8))
    yield knn_case("uniform", 2000, (4, 8), 0)
    yield fof_case("clustered", 2000, 1)
    yield stages_case("uniform", 2000)
    yield spheres_case("clustered", 2000)
    yield within_case(2000, 3)


def listed(small: bool, words: Sequence[str] = ()) -> list[Case]:
    """Return cases in order of execution, each call once. With ``words``, keep only calls whose keys contain a word."""
    retained, keys = [], set()
    for case in sorted(quick() if small else full(), key=lambda case: case.urgency):
        calls = {call.key(case.sample): call for call in case.calls}
        selected = [key for key in calls if key not in keys and (not words or any(word in key for word in words))]
        keys.update(calls)
        if selected:
            retained.append(Case(case.sample, tuple(calls[key] for key in selected), case.urgency, case.peers))
    return retained
