"""What is timed: samples of particles, and calls on them. A case is one process, and one line of the record a call."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

KS = (4, 8, 16, 32, 64)
B = (0.2, 0.7)  # linking lengths in mean separations
PUBLISHED_K = 30  # of the published timing with separate queries
BOX = 1.0


def power(n: int) -> str:
    """1000000 as 1e6, other numbers as they are."""
    digits = str(n)
    return f"{digits[0]}e{len(digits) - 1}" if set(digits[1:]) == {"0"} else digits


@dataclass(frozen=True)
class Sample:
    """Particles: ``uniform`` or ``clustered`` in the unit box, or the ``snapshot`` of 128^3."""

    kind: str
    n: int

    @property
    def name(self) -> str:
        return f"{self.kind} {power(self.n)}"


@dataclass(frozen=True)
class Call:
    """One thing to time on a sample.

    what: a method of `libraries.Library`. options: its arguments besides particles.
    """

    what: str
    options: dict[str, Any] = field(default_factory=dict)

    def key(self, sample: Sample) -> str:
        options = dict(self.options)
        box = options.pop("box", None)
        words = [f"{name}={value:g}" for name, value in options.items()]
        where = {None: [], 0.0: ["open"]}.get(box, ["periodic"])
        return " ".join([self.what, sample.name, *words, *where])


@dataclass(frozen=True)
class Case:
    """Calls on one sample in one process, those that need less memory first: so the peak after each is its own."""

    sample: Sample
    calls: tuple[Call, ...]
    urgency: int
    minutes: float = 4.0
    peers: tuple[str, ...] = ()

    def job(self, calls: Sequence[Call], library: str, options: dict[str, Any]) -> dict[str, Any]:
        """What `measure` is told."""
        listed = [{"key": call.key(self.sample), "what": call.what, "options": call.options} for call in calls]
        return {"library": library, "sample": asdict(self.sample), "calls": listed} | options


def knn_case(kind: str, n: int, ks: Sequence[int], urgency: int) -> Case:
    calls = [Call("knn", {"k": k, "box": box}) for k in ks for box in (BOX, 0.0)]
    return Case(Sample(kind, n), tuple(calls), urgency, peers=("published", "jaxkd"))


def fof_case(kind: str, n: int, urgency: int, box: float = BOX) -> Case:
    calls = [
        Call(what, {"b": b, "box": box})
        for what in ("labels", "catalogue")
        for b in (B if kind == "uniform" else B[:1])
    ]
    return Case(Sample(kind, n), tuple(calls), urgency, peers=("published",))


def spheres_case(kind: str, n: int, box: float = BOX) -> Case:
    return Case(Sample(kind, n), (Call("spheres", {"b": B[0], "box": box}),), 3)


def stages_case(kind: str, n: int) -> Case:
    """Each kernel apart, and how many distances no search of this tree can do without."""
    return Case(Sample(kind, n), (Call("stages"), Call("distances", {"k": 16, "box": BOX})), 3)


def full() -> Iterator[Case]:
    """All cases. Those with the lowest urgency are first: what the targets are set for."""
    both = ("uniform", "clustered")
    for kind, n in itertools.product(both, (10**6, 10**7)):
        yield knn_case(kind, n, KS, 0)
        yield fof_case(kind, n, 1)
    for kind in both:
        yield knn_case(kind, 10**8, (16,), 2)
        yield fof_case(kind, 10**8, 2)
    for kind, n in itertools.product(both, (10**6, 10**7)):
        yield stages_case(kind, n)
    yield from (spheres_case("clustered", n) for n in (10**5, 10**6, 10**7))
    yield spheres_case("snapshot", 128**3, 100.0)
    for n in (10**6, 10**7):
        yield Case(Sample("uniform", n), (Call("query", {"k": PUBLISHED_K, "box": 0.0}),), 4, peers=("published",))
    yield fof_case("snapshot", 128**3, 4, 100.0)
    for kind, n in itertools.product(both, (10**4, 10**5)):
        yield knn_case(kind, n, KS, 5)
    for kind in both:
        yield fof_case(kind, 10**5, 5)
    yield Case(Sample("uniform", 10**9), (Call("labels", {"b": 0.2, "box": BOX}),), 6)


def quick() -> Iterator[Case]:
    """One small case of each kind, to try the script itself."""
    yield knn_case("uniform", 2000, (4, 8), 0)
    yield fof_case("clustered", 2000, 1)
    yield stages_case("uniform", 2000)
    yield spheres_case("clustered", 2000)
    yield Case(Sample("uniform", 1000), (Call("query", {"k": 5, "box": 0.0}),), 4, peers=("published",))


def listed(small: bool, words: Sequence[str] = ()) -> list[Case]:
    """Cases in the order in which they are run; only calls whose keys contain one of ``words``, if there are any."""
    cases = sorted(quick() if small else full(), key=lambda case: case.urgency)
    if not words:
        return cases
    kept = []
    for case in cases:
        calls = tuple(call for call in case.calls if any(word in call.key(case.sample) for word in words))
        kept += [Case(case.sample, calls, case.urgency, case.minutes, case.peers)] if calls else []
    return kept
