"""Derivatives of sums over kernels, compared with finite differences of their definition in float64 NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import KernelSum, assert_near, nearest_differences

from jztree.data import Pos, PosMass
from jztree.radius import kernel_sums, sph_derivative

pytestmark = pytest.mark.emulated

FORMS = ("gather", "scatter", "mean_kernel", "mean_h")
SPH = ("cubic_spline", "wendland_c2", "wendland_c4", "wendland_c6")


def differences(func: Any, args: tuple[Any, ...], dots: tuple[Any, ...], step: float) -> Any:
    up, down = (func(*[a + s * step * d for a, d in zip(args, dots, strict=True)]) for s in (1, -1))
    return (np.asarray(up) - np.asarray(down)) / (2 * step)


@pytest.mark.watched("wendland_c4-3-mean_h")
@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("kernel", "dims"), [("wendland_c4", 3), ("cubic_spline", 2), ("gaussian", 4), ("wendland_c6", 1)]
)
def test_derivatives(kernel: str, dims: int, form: str) -> None:
    """Test derivatives with respect to positions, values, lengths and box: forward and reverse, and of second order."""
    rng = np.random.default_rng(3)
    n, lengths = 60, np.where(np.arange(dims) == 1, 0.0, 1.0)
    pos, h, v = rng.random((n, dims)) * 1.6 - 0.3, rng.uniform(0.3, 0.6, n), rng.normal(size=(n, 2))
    args = pos, h, v, lengths + 0.0
    dots = (*(rng.standard_normal(np.shape(arg)) for arg in args[:3]), 0.3 * (lengths > 0))

    def plain(pos: Any, h: Any, v: Any, box: Any) -> np.ndarray:
        return KernelSum(kernel, form, box, 9.0)(pos, pos, h, h, v)

    def func(pos: Any, h: Any, v: Any, box: Any) -> jax.Array:
        return kernel_sums(pos, h, boxsize=box, values=v, kernel=kernel, form=form, truncate=9.0)

    with jax.enable_x64(True):
        value, result = jax.jit(lambda *args: jax.jvp(func, args, dots))(*args)
        assert_near(value, plain(*args), 1e-12)
        assert_near(result, differences(plain, args, dots, 1e-6), 1e-6)
        u = rng.normal(size=(n, 2))
        loss = lambda *args: jnp.sum(u * func(*args))  # noqa: E731
        back = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(*args)
        along = sum(np.sum(b * d) for b, d in zip(back, dots, strict=True))
        np.testing.assert_allclose(along, np.sum(u * result), rtol=1e-10)
        # Exclude the box, which has first derivatives only.
        slope = jax.jit(jax.grad(lambda *sample: loss(*sample, lengths), (0, 1, 2)))
        twice = jax.jit(lambda *sample: jax.jvp(slope, sample, dots[:3]))(*args[:3])[1]
        for got, up, down in zip(
            twice,
            *(slope(*[a + s * 1e-6 * d for a, d in zip(args[:3], dots, strict=False)]) for s in (1, -1)),
            strict=True,
        ):
            assert_near(got, (np.asarray(up) - np.asarray(down)) / 2e-6, 2e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gradient", "divergence", "curl"])
@pytest.mark.parametrize("form", FORMS)
def test_derivatives_by_query_positions(kind: str, form: str) -> None:
    """They are the derivatives of the sums by the positions of the queries, and have derivatives themselves."""
    rng = np.random.default_rng(5)
    pos, query, v = rng.random((80, 3)), rng.random((30, 3)), rng.normal(size=(80, 3))
    h, h_query = rng.uniform(0.3, 0.6, 80), rng.uniform(0.3, 0.6, 30)
    shifts = np.eye(3) * 1e-5
    by = np.stack(
        [
            (
                KernelSum(SPH[2], form, 1.0)(query + e, pos, h, h_query, v)
                - KernelSum(SPH[2], form, 1.0)(query - e, pos, h, h_query, v)
            )
            / 2e-5
            for e in shifts
        ],
        axis=-1,
    )
    expected = {
        "gradient": by,
        "divergence": np.einsum("ndd->n", by),
        "curl": np.stack([by[:, j, i] - by[:, i, j] for i, j in ((1, 2), (2, 0), (0, 1))], axis=-1),
    }[kind]

    def func(*args: Any) -> jax.Array:
        pos, query, v, h, h_query = args
        return kernel_sums(
            pos, h, boxsize=1.0, queries=query, query_h=h_query, values=v, kernel=SPH[2], form=form, derivative=kind
        )

    with jax.enable_x64(True):
        args = pos, query, v, h, h_query
        dots = tuple(rng.standard_normal(arg.shape) for arg in args)
        both = jax.jit(lambda *args: jax.jvp(func, args, dots))
        value, result = both(*args)
        assert_near(value, expected, 1e-7)
        assert_near(result, differences(lambda *args: both(*args)[0], args, dots, 1e-6), 1e-6)
        u = rng.normal(size=result.shape)
        back = jax.jit(jax.grad(lambda *args: jnp.sum(u * func(*args)), tuple(range(5))))(*args)
        along = sum(np.sum(b * d) for b, d in zip(back, dots, strict=True))
        np.testing.assert_allclose(along, np.sum(u * result), rtol=1e-9)


@pytest.mark.watched
@pytest.mark.long
@pytest.mark.parametrize("box", [1.0, None])
def test_derivatives_of_fields(box: Any) -> None:
    """Compare with explicit SPH formulas. The derivatives of a constant field vanish."""
    rng = np.random.default_rng(5)
    pos, mass, field = rng.random((200, 3)), rng.random(200), rng.normal(size=(200, 3))
    h = rng.uniform(0.2, 0.4, 200)
    difference = nearest_differences(pos, pos, box)
    r = np.sqrt((difference**2).sum(axis=-1))
    w = oracles.kernel_weight(SPH[0], 3, r / h[:, None]) / h[:, None] ** 3
    step = 1e-6
    up, down = (oracles.kernel_weight(SPH[0], 3, (r + s * step) / h[:, None]) for s in (1, -1))
    slope = (up - down) / (2 * step) / h[:, None] ** 3 / np.where(r > 0, r, np.inf)
    change = (field[None] - field[:, None]) * mass[None, :, None]
    by = np.einsum("ij,ijc,ijd->icd", slope, change, difference) / (w @ mass)[:, None, None]
    curl = np.stack([by[:, j, i] - by[:, i, j] for i, j in ((1, 2), (2, 0), (0, 1))], axis=-1)
    with jax.enable_x64(True):
        part = PosMass(pos=jnp.asarray(pos), mass=jnp.asarray(mass))
        for kind, expected in (("gradient", by), ("divergence", np.einsum("icc->i", by)), ("curl", curl)):
            assert_near(sph_derivative.jit(part, h, field, derivative=kind, boxsize=box), expected, 1e-7)
        constant = sph_derivative.jit(part, h, np.full(200, 3e4), derivative="gradient", boxsize=box)
        assert np.abs(constant).max() < 1e-10 * 3e4
    flat = sph_derivative.jit(Pos(pos=oracles.uniform(50, 2), num=30), 0.3, oracles.uniform(50, 2), derivative="curl")
    assert flat.shape == (50,)
    assert np.all(flat[30:] == 0)


@pytest.mark.long
def test_unsupported_derivatives_raise() -> None:
    """They must raise errors instead of returning 0."""
    pos = oracles.uniform(50, 3)
    hat = lambda pos, h: kernel_sums(pos, h, kernel="top_hat").sum()  # noqa: E731
    for which in (0, 1):
        with pytest.raises(ValueError, match="top hat"):
            jax.eval_shape(jax.grad(hat, which), pos, 0.2)
    ones = jnp.ones(50)
    slope = jax.jit(jax.grad(lambda v: kernel_sums(pos, 0.2, values=v, kernel="top_hat").sum()))(ones)
    assert_near(slope, kernel_sums.jit(pos, 0.2, kernel="top_hat"), 1e-6)
    third = jax.grad(jax.grad(jax.grad(lambda h: kernel_sums(pos, h).sum())))
    with pytest.raises(ValueError, match="two derivatives"):
        jax.eval_shape(third, 0.2)
    with pytest.raises(ValueError, match="first derivatives by the box"):
        jax.eval_shape(jax.grad(jax.grad(lambda box: kernel_sums(pos, 0.2, boxsize=box).sum())), 1.0)


@pytest.mark.parametrize("form", ["gather", "mean_kernel", "mean_h"])
def test_padding_rows_have_zero_derivatives(form: str) -> None:
    pos, mass, h = oracles.uniform(43, 3), np.ones(43, np.float32), np.full(43, 0.3, np.float32)

    def loss(pos: Any, mass: Any, h: Any, box: Any) -> Any:
        part = PosMass(pos=pos, mass=mass, num=40)
        slopes = sph_derivative(part, h, pos, derivative="divergence", boxsize=jax.lax.stop_gradient(box))
        sums = kernel_sums(part, h, boxsize=box, form=form)
        return jnp.where(jnp.arange(43) < 40, jnp.log(sums), 0).sum() + (slopes**2).sum()

    derive = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
    expected = derive(pos, mass, h, jnp.ones(3))
    for array in (pos, mass, h):
        array[40:] = np.nan
    for got, want in zip(derive(pos, mass, h, jnp.ones(3)), expected, strict=True):
        assert np.any(np.asarray(want) != 0)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(got[40:], 0)


@pytest.mark.long
def test_vmap_over_smoothing_lengths() -> None:
    pos = oracles.uniform(100, 3)
    h = np.array([0.1, 0.2, 0.3], np.float32)
    result = jax.vmap(lambda h: kernel_sums(pos, h))(h)
    assert_near(result, np.stack([kernel_sums(pos, column) for column in h]), 1e-6)
