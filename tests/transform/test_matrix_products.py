"""Matrix products and searches at the numbers of rows at which some versions of JAX compute wrong results.

jaxlib 0.10.2 gives wrong sums of matrix-vector products on CPUs above 16,384 rows in float64 and 32,768 in float32
(jax-ml/jax#39103), and zeros from a binary search above 10,000 (jax-ml/jax#39887).
"""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from public_calls import CALLS, NOT_DIFFERENTIABLE, ON_HOST, particles

import jztree
import jztree_utils
from jztree import halos
from jztree.data import FofCatalogue
from transform.test_modes import total

ROW_COUNTS = (9_999, 10_000, 10_001, 16_384, 16_385, 16_386, 32_768, 32_769, 32_770)
# The derivative of eigenvectors multiplies one matrix per group, and the product is correct.
WITH_PRODUCT = {"halos.principal_axes"}
each_count = pytest.mark.parametrize("num_rows", ROW_COUNTS)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def is_traced(primitive: str, function: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a function uses a JAX primitive, also in the functions that it calls."""
    return f" {primitive}[" in str(jax.make_jaxpr(function)(*arguments))


@pytest.mark.parametrize("name", sorted(set(CALLS) - ON_HOST))
def test_call_uses_no_matrix_product(name: str) -> None:
    part = particles()
    rows = {"pos": part.pos, "mass": part.mass, "vel": part.vel}
    sum_of_call = functools.partial(total, part=part, name=name)
    assert not is_traced("dot_general", sum_of_call, rows)
    if name not in NOT_DIFFERENTIABLE:
        assert is_traced("dot_general", jax.grad(sum_of_call), rows) == (name in WITH_PRODUCT)


def test_sources_name_no_matrix_product_of_jax() -> None:
    """The tools multiply and search with NumPy alone, and no test calls all of them at all numbers of rows."""
    products = r"(?:jnp|lax)\.(?:einsum|matmul|dot|vdot|inner|outer|tensordot|dot_general)\b"
    for folder, names in ((jztree, products), (jztree_utils, rf"{products}|jnp\.searchsorted")):
        for path in Path(folder.__file__).parent.rglob("*.py"):
            assert not re.findall(names, path.read_text()), path


@each_count
@each_dtype
def test_axes_and_their_derivatives_do_not_depend_on_the_number_of_groups(num_rows: int, dtype: Any) -> None:
    with jax.enable_x64(True):
        random = np.random.default_rng(num_rows)
        factors, weights = (random.normal(size=(num_rows, 3, 3)).astype(dtype) for _ in range(2))
        tensors = factors @ factors.transpose(0, 2, 1)
        tensors /= np.trace(tensors, axis1=1, axis2=2)[:, None, None]

        @jax.jit
        @functools.partial(jax.grad, has_aux=True)
        def slope(tensors: jax.Array, weights: jax.Array) -> Any:
            groups = tensors.shape[0]
            cata = FofCatalogue(
                ngroups=groups,
                count=jnp.ones(groups, jnp.int32),
                shape_tensor=tensors,
                com_inertia_radius=weights[:, 0, 0],
            )
            axes = halos.principal_axes(cata)
            return jnp.sum(axes.directions * weights) + jnp.sum(axes.lengths * weights[:, 0]), axes

        pieces = [slice(first, first + 5_000) for first in range(0, num_rows, 5_000)]
        results = [slope(tensors[rows], weights[rows]) for rows in (slice(None), *pieces)]
        jax.tree.map(lambda all_groups, *few: np.testing.assert_array_equal(all_groups, np.concatenate(few)), *results)


@each_count
@each_dtype
@pytest.mark.parametrize("method", ["scan", "compare_all"])
def test_search_in_rows_is_correct(num_rows: int, dtype: Any, method: str) -> None:
    """The library searches for the rank or the group of each row, by these two methods."""
    with jax.enable_x64(True):
        random = np.random.default_rng(num_rows)
        boundaries, sorted_rows = (np.sort(random.random(size)).astype(dtype) for size in (37, num_rows))
        searches = (
            [(boundaries, sorted_rows)]
            if method == "compare_all"
            else [(boundaries, sorted_rows), (sorted_rows, boundaries), (sorted_rows, sorted_rows)]
        )
        for starts, rows in searches:
            for side in ("left", "right"):
                expected = np.searchsorted(starts, rows, side)
                compiled = jax.jit(functools.partial(jnp.searchsorted, side=side, method=method))(starts, rows)
                np.testing.assert_array_equal(compiled, expected)
