"""The classes of errors that depend on values: ValueError in plain calls, in which the values are known."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import deal, even, mesh_of

from jztree.data import ParticleData, Pos, PosMass
from jztree.density import knn_density
from jztree.fof import dbscan, fof_and_catalogue, fof_labels
from jztree.knn import knn
from jztree.overdensity import spherical_overdensity
from jztree.radius import count_within, kernel_sums, neighbours_within, pair_counts
from jztree.tree import zsort_and_tree

pytestmark = pytest.mark.fast

CALLS: dict[str, Callable[..., Any]] = {
    "knn": lambda find, part: find(part, 3),
    "fof_labels": lambda find, part: find(part, 0.1),
    "dbscan": lambda find, part: find(part, 0.1),
    "count_within": lambda find, part: find(part, 0.1),
    "neighbours_within": lambda find, part: find(part, 0.1),
    "zsort_and_tree": lambda find, part: find(part),
    "knn_density": lambda find, part: find(part, k=8),
}
FUNCTIONS = (knn, fof_labels, dbscan, count_within, neighbours_within, zsort_and_tree, knn_density)


@pytest.mark.parametrize("find", FUNCTIONS, ids=lambda find: find.__name__)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nan_position_raises(find: Any, kind: Any) -> None:
    """It is an error also in 32-bit mode, and for float64 arrays of NumPy, which are rounded in that mode."""
    pos = oracles.uniform(300, 3, kind)
    pos[7, 1] = np.nan
    part = PosMass(pos=pos, mass=np.ones(300, np.float32))
    call = CALLS[find.__name__]
    with pytest.raises(ValueError, match=r"^row 7 of the positions is NaN or infinite") as error:
        call(find, part)
    assert oracles.one_sentence(error)
    assert not isinstance(error.value, jax.errors.JaxRuntimeError)
    with pytest.raises(oracles.RUN_TIME_ERROR, match="jztree: row 7 of the positions is NaN or infinite"):
        jax.block_until_ready(call(find.jit, part))


def with_bad_rows(column: np.ndarray) -> np.ndarray:
    """Return a column with three bad rows before ``num``, 18, and one in the padding."""
    column = column.astype(np.float32)
    column[[7, 9, 11, 19]] = np.nan
    return column


GOOD, BAD = oracles.uniform(20, 3), with_bad_rows(oracles.uniform(20, 3))
ONES, BAD_ONES = np.ones(20, np.float32), with_bad_rows(np.ones(20))


def of(**columns: Any) -> ParticleData:
    return ParticleData(**({"pos": GOOD} | columns), num=18)


@pytest.mark.parametrize(
    "call",
    [
        lambda: knn(of(pos=BAD), 3),
        lambda: knn(GOOD, 3, part_query=of(pos=BAD)),
        lambda: knn_density(of(mass=BAD_ONES), 8),
        lambda: fof_and_catalogue(of(mass=BAD_ONES), 0.1),
        lambda: fof_and_catalogue(of(vel=BAD), 0.1),
        lambda: count_within(of(), 0.1, weights=BAD_ONES),
        lambda: kernel_sums(of(), 0.1, values=BAD_ONES),
        lambda: kernel_sums(of(), 0.1 * BAD_ONES),
    ],
)
def test_plain_calls_count_bad_rows(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"^row 7 .* \(3 such rows\)\.$") as error:
        call()
    assert oracles.one_sentence(error)


def test_compiled_and_mapped_calls_count_bad_rows() -> None:
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"row 7 of the positions .* \(3 such rows\)\."):
        jax.block_until_ready(knn.jit(of(pos=BAD), 3))
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"row 7 .* \(3 such rows\)\."):
        jax.block_until_ready(count_within.jit(of(), 0.1, weights=BAD_ONES))
    one_bad = np.where(np.arange(20)[:, None] == 7, np.nan, GOOD).astype(np.float32)
    with pytest.raises(
        oracles.RUN_TIME_ERROR, match=r"choose another unit of length\.( \[executable_name='\w*'\])?(\n|$)"
    ):
        jax.block_until_ready(knn.jit(one_bad, 3))
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"on rank 1: row 7 of the positions .* \(4 such rows\)\."):
        jax.block_until_ready(knn.smap(mesh_of(2), jit=True)(deal(np.concatenate([GOOD, BAD]), even(40, 2)), 3))


@pytest.mark.parametrize("transform", [jax.vmap, lambda call: jax.jit(jax.vmap(call))], ids=["vmap", "jit"])
def test_errors_under_vmap_name_the_member(transform: Any) -> None:
    pos = np.stack([GOOD, GOOD, BAD, BAD])
    with pytest.raises(
        oracles.RUN_TIME_ERROR, match=r"in member 2 of a vmap: row 7 of the positions .* \(4 such rows\)\."
    ):
        jax.block_until_ready(transform(lambda rows: knn(rows, 3))(pos))
    nested = transform(jax.vmap(lambda rows: knn(rows, 3)))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="in member 1 of a vmap: in member 0 of a vmap: row 7 of the"):
        jax.block_until_ready(nested(np.stack([pos[:2], pos[2:]])))
    jax.tree.map(np.testing.assert_array_equal, transform(lambda rows: knn(rows, 3))(pos[:2])[0][1], knn(GOOD, 3)[0])


NEITHER = r"k is 1, but there are only 0 particles to choose from; pass allow_missing=True to jztree\.nearest"


def test_too_few_particles_error_suggests_remedies() -> None:
    none = np.zeros((0, 3), np.float32)
    with pytest.raises(ValueError, match=NEITHER):
        knn(none, 1, part_query=GOOD)
    with pytest.raises(ValueError, match="k is 2, but there are only 0 others to choose from; pass"):
        knn(GOOD[:1], 2, exclude_self=True)
    with pytest.raises(
        ValueError, match="k is 9, but there are only 5 particles to choose from; use a smaller k, or pass"
    ):
        knn(GOOD[:5], 9)
    search = jax.jit(lambda num: knn(Pos(pos=GOOD, num=num), 2))
    for num, words in (
        (0, "k is 2, but there are 0 particles .*; pass"),
        (1, "k is 2, .* only 1 .*; use a smaller k, or"),
    ):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=f"{words} .*allow_missing=True"):
            jax.block_until_ready(search(num))
    empty = Pos(pos=np.zeros((2, 5, 3), np.float32), num=np.zeros(2, np.int32))
    with pytest.raises(
        oracles.RUN_TIME_ERROR, match=r"there are 0 particles .* on all devices, .* pass .*allow_missing=True"
    ):
        jax.block_until_ready(knn.smap(mesh_of(2), jit=True)(empty, 1))
    radius, row = knn(none, 1, part_query=GOOD, allow_missing=True)  # as the error message suggests
    assert np.isinf(radius).all()
    assert (np.asarray(row) == -1).all()


def test_k_of_0_raises() -> None:
    with pytest.raises(ValueError, match=r"^k must be at least 1, not 0"):
        knn(GOOD, 0)


def test_source_mask_and_query_position_errors() -> None:
    pos = oracles.uniform(20, 3)
    sample = np.arange(20) < 2
    with pytest.raises(ValueError, match="only 2 particles"):
        knn(pos, 3, source_mask=sample)
    bad = pos.copy()
    bad[4] = np.inf
    with pytest.raises(ValueError, match="row 4 of the query positions"):
        knn(pos, 3, part_query=Pos(pos=bad, num=10))


RAGGED = [0.1, [0.2, 0.3]]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda pos: knn(pos, 3, RAGGED), "boxsize"),
        (lambda pos: knn.jit(pos, 3, RAGGED), "boxsize"),
        (lambda pos: knn(pos, 3, max_radius=RAGGED), "max_radius"),
        (lambda pos: fof_labels(pos, RAGGED), "rlink"),
        (lambda pos: dbscan(pos, RAGGED), "eps"),
        (lambda pos: count_within(pos, RAGGED), "radius"),
        (lambda pos: neighbours_within.jit(pos, RAGGED), "radius"),
        (lambda pos: kernel_sums(pos, RAGGED), "h"),
        (lambda pos: pair_counts(pos, RAGGED), "edges"),
        (lambda pos: spherical_overdensity(PosMass(pos=pos, mass=1.0), RAGGED, queries=pos[:2]), "density"),
    ],
)
def test_ragged_lists_raise(call: Callable[..., Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is \[0\.1, \[0\.2, 0\.3\]\]; lists in one list must") as error:
        call(oracles.uniform(30, 3))
    assert oracles.one_sentence(error)


def test_long_lists_are_abbreviated_in_errors() -> None:
    with pytest.raises(ValueError, match=r"^radii is .* \.\.\.; radii must be at least 0") as error:
        count_within(oracles.uniform(30, 3), radii=[-0.5] * 1000)
    assert len(str(error.value)) < 300
