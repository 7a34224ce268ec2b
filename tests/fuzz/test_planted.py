"""Each part must find the errors planted in the library for it, and print them as Python that reproduces them."""

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jztree as jz
from fuzz import (
    case,
    catalogue,
    command,
    devices,
    files,
    fof,
    gradients,
    gravity,
    knn,
    links,
    nearest,
    pairs,
    peaks,
    phases,
    radius,
    ranks,
    runner,
    spheres,
    subhaloes,
    sums,
    trees,
)
from jztree import kernels
from jztree_utils import io

PARTS = (knn, nearest, fof, radius, pairs, sums, spheres, trees, peaks, links, phases, subhaloes, gravity)


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    """Compile everything anew, because earlier code lacks a planted error, and later tests must not use this code."""
    jax.clear_caches()
    case._defined.cache_clear()
    yield
    jax.clear_caches()
    case._defined.cache_clear()


class Found(Exception):  # noqa: N818 - no error
    """The part found the planted error."""


def findings(
    part: ModuleType, cases: int = 30, only: int | None = None, until: str | None = None
) -> dict[str, runner.Finding]:
    """Return the findings of the first cases of a part.

    With ``until``, run cases only until one is found that contains these words, and do not reduce cases.
    """

    def stop_if_found(finding: runner.Finding) -> None:
        if until is not None and until in finding.wrong.kind:
            raise Found

    shrinking = 1.0 if until is None else 0.0
    run = runner.Run({"part": part}, seed=3, cases=cases, only=only, shrinking=shrinking, report=stop_if_found)
    with contextlib.suppress(Found):
        run.run()
    return run.tallies["part"].findings


def batches_with(part: ModuleType, *texts: str, rows: int = 0) -> Iterator[int]:
    """Yield the batches whose cases contain these texts and at least ``rows`` positions."""
    for number in range(1000):
        first = next(runner.cases_of("part", part, 3, number))
        script = first.script()
        if all(text in script for text in texts) and (rows == 0 or len(first.values["pos"]) >= rows):
            yield number


def batch_with(part: ModuleType, *texts: str) -> int:
    """Return the first of these batches."""
    return next(batches_with(part, *texts))


def assert_finds(part: ModuleType, words: str, cases: int = 30, only: int | None = None) -> None:
    """Assert that one of the first cases of a part finds a fault that contains these words."""
    result = findings(part, cases, only, until=words)
    assert any(words in kind for kind in result), f"{words!r} is not in {list(result)}"


def planted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Make a function return ``change`` of its result."""
    real = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args, **kwargs: change(real(*args, **kwargs)))


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__.removeprefix("fuzz."))
def test_correct_library_passes(part: ModuleType) -> None:
    assert not findings(part, 20, 2 if part is knn else 1)


def joined_to_first(label: jax.Array) -> jax.Array:
    return label.at[1:2].set(0)


class Planted(NamedTuple):
    """An error in the results of a kernel.

    Attributes:
        part: The part that must find it.
        kernel: Name of the kernel.
        change: Function of the kernel's results.
        words: Words of the fault.
        cases: The largest number of cases that this takes.
        texts: Texts that all cases contain; without them, the first batches run.
    """

    part: ModuleType
    kernel: str
    change: Callable[[Any], Any]
    words: str
    cases: int = 30
    texts: tuple[str, ...] = ()


PLANTED = {
    # neighbours
    "neighbour": Planted(
        knn, "knn", lambda out: (out[0], out[1].at[:, -1].set(jnp.minimum(out[1][:, -1], 0))), "neighbour"
    ),
    "slightly too large radius": Planted(
        knn, "knn", lambda out: (out[0] * (1 + 3e-6), out[1]), "a radius is not that of"
    ),
    # within a radius
    "count that is one too large": Planted(
        radius, "count_within", lambda out: (out[0].at[:1].add(1), out[1]), "a count is not that of the pairs"
    ),
    "exchanged neighbour": Planted(
        radius,
        "neighbours_within",
        lambda out: (*out[:2], jnp.minimum(out[2], 0), out[3]),
        "lists are not those of the pairs",
        100,
    ),
    "slightly too large radius of nearest neighbours": Planted(
        nearest,
        "knn",
        lambda out: (jnp.where(jnp.isfinite(out[0]), out[0] * (1 + 3e-6), jnp.inf), out[1]),
        "a radius is not that of its neighbour",
        60,
    ),
    "shift": Planted(
        pairs, "pairs_within", lambda out: (*out[:4], jnp.minimum(out[4], 0), *out[5:]), "a pair that is none", 120
    ),
    "sign of a vector": Planted(
        pairs, "pairs_within", lambda out: (*out[:5], -out[5], out[6]), "a vector is not that between the pair", 60
    ),
    "sign of a gradient": Planted(
        sums, "kernel_sums", lambda out: -out, "a gradient of a sum is not that of the pairs", 60, ("gradient",)
    ),
    "sum without one neighbour": Planted(
        sums, "kernel_sums", lambda out: out.at[:1].multiply(0.9), "a sum over a kernel is not that of the pairs"
    ),
    # groups
    "divided group": Planted(
        fof,
        "fof",
        lambda label: label.at[-1:].set(label.shape[0] - 1),
        "particles that are linked are in different groups",
        60,
    ),
    "joined groups": Planted(fof, "fof", joined_to_first, "particles that are not linked are in one group", 160),
    "edge to a wrong particle": Planted(
        trees, "spanning_tree", lambda out: (out[0].at[:1].set(0), *out[1:]), "the ends of an edge are no pair of rows"
    ),
    "saddle of a peak": Planted(
        peaks, "peak_forest", lambda out: (jnp.maximum(out[0] - 1, 0), out[1]), "of a peak is wrong", 60
    ),
    "parent of a peak": Planted(peaks, "first_rows", lambda first: first + 1, "of a peak is wrong", 60),
    "potential of a subhalo": Planted(
        subhaloes, "group_potential", lambda out: (1.05 * out[0], out[1]), "an energy is wrong", 60
    ),
    "energy of a subhalo": Planted(
        subhaloes, "bound_energies", lambda out: (1.05 * out[0], *out[1:]), "an energy is wrong", 60
    ),
    "potential": Planted(gravity, "group_potential", lambda out: (1.1 * out[0], out[1]), "the potential is wrong", 60),
    "acceleration": Planted(
        gravity, "group_potential", lambda out: (out[0], 1.1 * out[1]), "the acceleration is wrong", 60
    ),
    "dispersion": Planted(phases, "catalogue", lambda out: (*out[:6], out[6] * 1.1, out[7]), "particles that are", 120),
    "mass": Planted(catalogue, "catalogue", lambda out: (out[0] * (1 + 1e-5), *out[1:]), "mass of a group", 60),
    "sphere with one particle too many": Planted(
        spheres, "overdensity", lambda out: (*out[:2], out[2] + 1, *out[3:]), "the count of a sphere"
    ),
}
_SLOW = ("parent of a peak", "energy of a subhalo", "acceleration", "mass", "sphere with one particle too many")


@pytest.mark.every_case
@pytest.mark.parametrize(
    "error", [pytest.param(error, marks=[pytest.mark.slow] if error in _SLOW else []) for error in PLANTED]
)
def test_wrong_result_of_a_kernel_is_found(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    plant = PLANTED[error]
    planted(monkeypatch, kernels, plant.kernel, plant.change)
    only = batch_with(plant.part, *plant.texts) if plant.texts else None
    assert_finds(plant.part, plant.words, plant.cases, only)


# Other errors in neighbours


@pytest.mark.long
def test_swallowed_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "check", lambda num, failed, numbers, sentence: kernels.as_num(num))
    assert_finds(knn, "no error although", 100)


def test_unexpected_exception_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("pos")

    monkeypatch.setattr(kernels, "knn", broken)
    assert_finds(knn, "KeyError", 5)


# Within a radius


@pytest.mark.long
def test_border_that_joins_the_last_cluster_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = 2**31 - 1
    planted(monkeypatch, kernels, "least_within", lambda minimum: jnp.where(minimum < nowhere, minimum + 1, minimum))
    words = "clusters are not those of the pairs"
    batches = batches_with(radius, "dbscan.jit(part, radius, min_samples=3", rows=64)
    assert any(words in kind for only in itertools.islice(batches, 8) for kind in findings(radius, 100, only, words))


@pytest.mark.long
def test_ignored_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernels.knn
    monkeypatch.setattr(kernels, "knn", lambda *args, **kwargs: real(*args, **(kwargs | {"limit": None})))
    assert_finds(nearest, "there are not as many neighbours as are counted", 60)


@pytest.mark.slow
def test_rounded_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is rounded to float32, which only pairs at exactly that distance reveal."""
    real = kernels.knn

    def rounded(*args: Any, **kwargs: Any) -> Any:
        limit = kwargs["limit"]
        words = jnp.asarray(limit.words)
        return real(*args, **(kwargs | {"limit": type(limit)(words.at[..., 1:-1].set(0))}))

    monkeypatch.setattr(kernels, "knn", rounded)
    assert_finds(nearest, "there are not as many neighbours as are counted", 600)


@pytest.mark.long
def test_missing_pair_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = kernels.pairs_within

    def shorter(*args: Any, **kwargs: Any) -> Any:
        *first, radius, box, size = args
        return real(*first, type(radius)(jnp.asarray(radius.words) * 0.9), box, size, **kwargs)

    monkeypatch.setattr(kernels, "pairs_within", shorter)
    assert_finds(pairs, "a pair is missing", 60)


# Groups


@pytest.mark.long
def test_wrong_order_of_densities_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort from the lowest density up. Ranks that are not those of the particles would end a program on a GPU."""
    sort = kernels.sort_words
    monkeypatch.setattr(kernels, "sort_words", lambda words, num: sort([~words[0], *words[1:]], num))
    assert_finds(peaks, "the number of peaks is wrong", 60)


@pytest.mark.long
def test_wrong_order_of_bound_particles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    words = kernels.descending_words
    monkeypatch.setattr(kernels, "descending_words", lambda energy: [0 * word for word in words(energy)])
    assert_finds(links, "a descendant is wrong", 400)


@pytest.mark.long
def test_link_of_particles_with_different_velocities_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    number = jz.fof._phase_space._number
    monkeypatch.setattr(jz.fof._phase_space, "_number", lambda length: jnp.sqrt(number(length)))
    assert_finds(phases, "particles that are", 60)


@pytest.mark.slow
def test_property_that_is_not_moved_with_its_particles_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "gather_rows", lambda rows, index: rows if rows.ndim == 1 else rows[index])
    assert_finds(catalogue, "did not go with its particles")


# Spheres, derivatives, files, devices


@pytest.mark.long
@pytest.mark.parametrize("search", ["knn.knn(jz.data.Pos", "smoothing_length"])
def test_zero_derivative_is_found(monkeypatch: pytest.MonkeyPatch, search: str) -> None:
    monkeypatch.setattr(sys.modules["jztree.knn._search"], "radii", lambda query, pos, box, rad, idx: rad)
    assert_finds(gradients, "derivative", 4, batch_with(gradients, search))


@pytest.mark.long
def test_damaged_file_that_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = io.read_snapshot

    def swallowing(path: Any, **options: Any) -> Any:
        try:
            return read(path, **options)
        except ValueError:
            return jz.data.ParticleData(pos=np.zeros((3, 3), np.float32)), io.SnapshotHeader()

    monkeypatch.setattr(io, "read_snapshot", swallowing)
    only = batch_with(files, 'path = folder / "snapshot.hdf5"')
    assert_finds(files, "pos was read with another number of rows", 20, only)


@pytest.mark.slow
def test_result_that_depends_on_the_number_of_devices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    search = sys.modules["jztree.knn._search"]
    planted(monkeypatch, search, "_numbers_only", lambda result: result | {"globalidx": result["globalidx"] * 0})
    assert_finds(devices, "neighbour", 25, batch_with(devices, "knn.smap", "[:2]"))


@pytest.mark.slow
def test_lists_without_rows_of_other_devices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(
        monkeypatch,
        sys.modules["jztree.tree.stage"],
        "boxes_of",
        lambda result: (result[0], *[x * 0 for x in result[1:]]),
    )
    batch = batch_with(ranks, "neighbours_within.smap", "[:2]")
    assert_finds(ranks, "lists depends on the number of devices", 30, batch)


# Reports


@pytest.mark.long
def test_a_report_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, kernels, "fof", joined_to_first)
    finding = findings(fof, 160)["particles that are not linked are in one group"]
    script = finding.case.script()
    assert script in finding.text().replace("\n    ", "\n")
    names: dict[str, Any] = {}
    with jax.enable_x64(finding.case.x64):
        exec(script.replace('jax.config.update("jax_enable_x64", True)', ""), names)
        np.testing.assert_array_equal(names["igroup"], finding.case.run()["igroup"])


def test_rows_and_digits_irrelevant_to_a_fault_are_removed() -> None:
    def judge(values: dict[str, Any], outcome: case.Outcome) -> None:
        used = values["pos"][: values["num"]]
        if (used > 0.99).any() and (used < 0.01).any():
            raise case.WrongError("both ends", "", outcome["total"])

    random = np.random.default_rng(5)
    values = {"pos": random.random((300, 2)), "mass": random.random(300), "num": 280}
    single = case.Case("total = mass[:num].sum()", values, judge, {"num": ("pos", "mass")}, x64=True)
    wrong = single.check()
    assert wrong is not None
    small, still = runner.smaller(single, wrong, np.inf)
    assert still.kind == "both ends"
    assert len(small.values["pos"]) == len(small.values["mass"]) == small.values["num"] <= 2
    assert len(small.script()) < 250


def test_literals_evaluate_to_their_values() -> None:
    random = np.random.default_rng(1)
    for dtype in (np.float32, np.float64, np.int64, np.int8, np.float16):
        rows = (random.standard_normal((4, 3)) * 100).astype(dtype)
        again = eval(case.literal(rows))
        assert again.dtype == rows.dtype
        np.testing.assert_array_equal(again, rows)
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    again = eval(case.literal(odd))
    np.testing.assert_array_equal(again, odd)
    assert np.signbit(again[3])


def test_end_of_the_process_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = tmp_path / "case"
    notes.write_text("fof 2 1 \n")
    process = subprocess.Popen([sys.executable, "-c", "import os; os.abort()"])
    code = command._watch(process, notes)
    assert code == -6
    command._report_end(notes, 3, "ended")
    assert "pos = np." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "patience"),
    [("while True: pass", "_PATIENCE"), ("import time; time.sleep(60)", "_PATIENCE_WITH_WAITS")],
    ids=["computes", "waits"],
)
def test_hang_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, patience: str) -> None:
    monkeypatch.setattr(command, patience, 0.5)
    process = subprocess.Popen([sys.executable, "-c", program])
    assert command._watch(process, tmp_path / "case") is None
    process.kill()
    process.wait()


@pytest.mark.long
def test_process_that_never_computes_is_not_reported_as_hanging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_PATIENCE", 0.5)
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(4)"])
    assert command._watch(process, tmp_path / "case") == 0
