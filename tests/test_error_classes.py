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
from jztree.radius import count_within, neighbours_within
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
