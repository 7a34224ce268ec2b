"""Nearest neighbours with bad input, or with a hierarchy of other particles: errors or correct results."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import particles

from jztree import data, tree
from jztree.knn import knn

pytestmark = [pytest.mark.emulated, pytest.mark.fast]

# Bad input


def test_first_of_several_invalid_rows_is_named() -> None:
    pos = oracles.uniform(50_000, 3)
    pos[[40_000, 20_001, 49_999], 2] = np.nan
    with pytest.raises(oracles.RUN_TIME_ERROR, match="row 20001 "):
        jax.block_until_ready(knn(jnp.asarray(pos), 3))


def test_positions_as_lists_work_or_raise() -> None:
    try:
        rad = knn([[0.0, 0.0], [3.0, 4.0]], 2, result="rad")
    except (TypeError, ValueError):
        return
    np.testing.assert_array_equal(rad, [[0, 5], [0, 5]])


def test_numpy_integers_are_accepted_as_k() -> None:
    assert knn(jnp.asarray(oracles.uniform(40, 3)), np.int64(4), result="rad").shape == (40, 4)


def test_k_above_num_raises() -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    with pytest.raises(ValueError, match=r"k is 9.* 8 "):
        knn(data.Pos(pos=pos, num=8), 9)
    search = jax.jit(lambda num: knn(data.Pos(pos=pos, num=num), 9))
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"k is 9, .* 8 ") as error:
        jax.block_until_ready(search(8))
    assert oracles.one_sentence(error)
    rad, _ = search(9)  # the same compiled function works after the error
    assert np.isfinite(rad[:9]).all()
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"k is 9, .* 0 "):
        jax.block_until_ready(search(0))


@pytest.mark.parametrize("num", [-1, 41, 3.5, np.nan, [3, 4]], ids=str)
def test_invalid_num_raises(num: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="num is") as error:
        knn(data.Pos(pos=jnp.asarray(oracles.uniform(40, 3)), num=num), 1)
    assert oracles.one_sentence(error)


@pytest.mark.parametrize(
    "box", [[1.0, None, np.inf], [1.0, None, 1.0], np.array([1.0, None, 0.0], object), "1"], ids=str
)
@pytest.mark.parametrize("search", [knn, knn.jit], ids=["plain", "jit"])
def test_non_numeric_box_error_explains_open_boundaries(search: Any, box: Any) -> None:
    with pytest.raises(TypeError, match=r"^boxsize is .*; lengths must be finite and positive, or 0 where open\.$"):
        search(jnp.asarray(oracles.uniform(40, 3)), 3, boxsize=box)


@pytest.mark.parametrize("box", [np.full(8, -1.2345678901), np.full(8, 1.2345678901e-41), np.full(8, 1j / 3)], ids=str)
def test_invalid_long_box_raises_a_one_sentence_error(box: np.ndarray) -> None:
    with pytest.raises((ValueError, TypeError), match="boxsize") as error:
        knn(jnp.asarray(oracles.uniform(40, 8)), 3, boxsize=box)
    assert oracles.one_sentence(error)


@pytest.mark.parametrize("box", [1e39, 1e300, 1e-50, 1e-300, 1e-41], ids=str)
def test_box_outside_float32_is_not_treated_as_open(box: float) -> None:
    pos = oracles.uniform(40, 3)
    try:
        rad = knn(jnp.asarray(pos), 3, boxsize=box, result="rad")
    except ValueError:
        return
    expected = np.sqrt(np.sort(oracles.squared_distances(pos, pos, box), axis=1)[:, :3])
    np.testing.assert_allclose(rad, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("box", [-1.0, np.nan, np.inf], ids=str)
def test_invalid_traced_box_raises(box: float) -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="boxsize"):
        jax.block_until_ready(jax.jit(lambda length: knn(pos, 3, boxsize=length))(box))


@pytest.mark.parametrize(
    "result", ["", "radius", "rad_", "_rad", "rad__globalidx", "rad,globalidx", "num", "rad_color", 3, None]
)
def test_unknown_result_names_raise(result: Any) -> None:
    with pytest.raises(ValueError, match="globalidx") as error:
        knn(particles(), 3, result=result)
    assert repr(result) in str(error.value)
    assert oracles.one_sentence(error)


def test_array_as_result_raises() -> None:
    with pytest.raises(ValueError, match="result is an array; it must be one or several of"):
        knn(particles(), 3, result=np.zeros(300))


def test_result_name_of_a_missing_field_raises() -> None:
    with pytest.raises(ValueError, match="'mass'"):
        knn(data.PosMass(pos=jnp.zeros((5, 3))), 1, result="rad_mass")


def test_reduce_without_reduce_func_or_the_reverse_raises() -> None:
    for options in ({"result": "reduce"}, {"reduce_func": lambda rnn, **kw: rnn}):
        with pytest.raises(ValueError, match="reduce_func"):
            knn(particles(), 3, **options)


def test_reduce_func_must_return_one_row_per_query() -> None:
    with pytest.raises(ValueError, match="300 rows"):
        knn(particles(), 3, result="reduce", reduce_func=lambda rnn, **kw: rnn.sum())


def test_queries_of_another_dtype_or_dimension_raise(x64: None) -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    for query in (jnp.zeros((4, 2), jnp.float32), jnp.zeros((4, 3), jnp.float64)):
        with pytest.raises(ValueError, match="queries"):
            knn(pos, 1, part_query=query)


def test_more_rows_than_can_be_indexed_raise() -> None:
    too_many = jax.ShapeDtypeStruct((2**31, 3), jnp.float32)
    with pytest.raises(ValueError, match=str(2**31)):
        jax.eval_shape(lambda pos: knn(pos, 1), too_many)


@pytest.mark.parametrize("result", ["rad_globalidx", "drad_pos"])
def test_more_than_2_to_the_31_results_are_traced_with_the_right_shape(result: str) -> None:
    rows = jax.ShapeDtypeStruct((2**22, 3), jnp.float32)
    shapes = jax.eval_shape(lambda pos: knn(data.Pos(pos=pos), 1024, result=result), rows)
    assert all(results.shape[:2] == (2**22, 1024) for results in shapes)


# Hierarchies of other particles


def right_or_refused(part: Any, box: Any, th: Any, k: int = 4) -> None:
    """Assert that a search with a hierarchy of unknown origin gives the correct result or an error."""
    try:
        rad, idx = jax.block_until_ready(knn(part, k, boxsize=box, th=th))
    except oracles.RUN_TIME_ERROR as error:
        refused = str(error)
    else:
        num, pos = int(data.get_num(part)), np.asarray(data.get_pos(part))
        oracles.assert_neighbours(rad[:num], idx[:num], pos[:num], pos[:num], box)
        return
    assert "th" in refused


def sorted_particles(n: int = 500, seed: int = 1, box: Any = None, dims: int = 3) -> tuple[Any, Any]:
    return tree.zsort_and_tree(jnp.asarray(oracles.uniform(n, dims, seed=seed)), boxsize=box)


def test_th_of_other_particles_with_the_same_count() -> None:
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"th .*zsort_and_tree") as error:
        jax.block_until_ready(knn(sorted_particles()[0], 4, th=sorted_particles(seed=2)[1]))
    assert oracles.one_sentence(error)


def test_th_with_particles_in_another_order() -> None:
    posz, th = sorted_particles()
    right_or_refused(posz[::-1], None, th)
    right_or_refused(jnp.asarray(oracles.uniform(500, 3)), None, th)


@pytest.mark.parametrize("n", [1, 24, 480, 499, 501, 600])
def test_th_of_another_number_of_particles(n: int) -> None:
    posz = sorted_particles()[0]
    right_or_refused(posz, None, sorted_particles(n)[1], k=1)
    right_or_refused(data.Pos(pos=posz, num=490), None, sorted_particles(500)[1])


@pytest.mark.parametrize("built", [None, 1.0, 0.5, 2.0], ids=str)
@pytest.mark.parametrize("used", [None, 1.0, 0.5, 2.0], ids=str)
def test_th_of_another_box(built: Any, used: Any) -> None:
    posz, th = sorted_particles(box=built)
    right_or_refused(posz, used, th)


def test_th_of_another_number_of_dimensions() -> None:
    right_or_refused(sorted_particles()[0], None, sorted_particles(dims=2)[1])


def test_th_of_another_dtype(x64: None) -> None:
    pos = oracles.uniform(500, 3)
    single, th32 = tree.zsort_and_tree(jnp.asarray(pos))
    double, th64 = tree.zsort_and_tree(jnp.asarray(pos, jnp.float64))
    right_or_refused(double, None, th32)
    right_or_refused(single, None, th64)


def test_th_that_is_damaged() -> None:
    posz, th = sorted_particles(3000)
    for name in ("flat_splits", "flat_particle_splits"):
        values = getattr(th, name)
        for damaged in (values.at[5].set(-4), values.at[5].set(10**6), values[::-1], values + 1, values[:-1]):
            right_or_refused(posz, None, replace(th, **{name: damaged}))
    for name in ("flat_lower", "flat_upper"):
        right_or_refused(posz, None, replace(th, **{name: getattr(th, name) * jnp.nan}))
