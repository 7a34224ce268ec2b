"""What class errors are of that depend on numbers: ValueError in plain calls, which know them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import oracles
import pytest

from jztree.data import Pos, PosMass
from jztree.density import knn_density
from jztree.fof import dbscan, fof_labels
from jztree.knn import knn
from jztree.overdensity import spherical_overdensity
from jztree.radius import count_within, kernel_sums, neighbours_within, pair_counts
from jztree.tree import zsort_and_tree

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
def test_nan_in_a_position(find: Any, kind: Any) -> None:
    """In the 32-bit mode too, and for float64 of NumPy, which it rounds."""
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


def test_what_is_wrong_with_numbers_of_particles_and_queries() -> None:
    pos = oracles.uniform(20, 3)
    some = np.arange(20) < 2
    with pytest.raises(ValueError, match="only 2 particles"):
        knn(pos, 3, source_mask=some)
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
        (lambda pos: spherical_overdensity(PosMass(pos=pos, mass=1.0), pos[:2], RAGGED), "density"),
    ],
)
def test_lists_of_different_lengths_in_one_list(call: Callable[..., Any], name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is \[0\.1, \[0\.2, 0\.3\]\]; lists in one list must") as error:
        call(oracles.uniform(30, 3))
    assert oracles.one_sentence(error)


def test_long_lists_are_not_shown_as_a_whole() -> None:
    with pytest.raises(ValueError, match=r"^radius is .* \.\.\.; radii must be at least 0") as error:
        count_within(oracles.uniform(30, 3), [-0.5] * 1000)
    assert len(str(error.value)) < 300
