"""Derivatives of sums over kernels in any unit: powers of h may leave the range of floats although derivatives do not.

In units that differ by powers of two, numbers have the same digits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jztree.radius import kernel_sums

pytestmark = pytest.mark.emulated

FORMS = ("gather", "scatter", "mean_kernel", "mean_h")


def some(dtype: Any) -> tuple[np.ndarray, ...]:
    """Return positions, lengths, values, a box, and the factors of sums in the loss."""
    rng = np.random.default_rng(2)
    n = 40
    pos, h = rng.random((n, 3)), rng.uniform(0.2, 0.4, n)
    numbers = pos, h, rng.normal(size=n), np.array([1.0, 0.0, 1.25]), rng.normal(size=n)
    return tuple(np.asarray(number, dtype) for number in numbers)


def in_units(numbers: Any, units: tuple[float, float, float]) -> list[np.ndarray]:
    length, value, loss = units
    each = (length, length, value, length, loss)
    return [np.asarray(number * np.asarray(unit, number.dtype)) for number, unit in zip(numbers, each, strict=True)]


def loss_of(form: str, u: np.ndarray, derivative: str | None, separate: bool) -> Any:
    if derivative is not None:
        u = np.stack([u, -u, u / 2], axis=1)

    def loss(pos: Any, h: Any, v: Any, box: Any) -> jax.Array:
        query = {"queries": pos[::-1], "query_h": h[::-1]} if separate else {}
        return jnp.sum(u * kernel_sums(pos, h, boxsize=box, values=v, form=form, derivative=derivative, **query))

    return loss


def slopes(form: str, numbers: Any, units: tuple[float, float, float], derivative: str | None, separate: bool) -> Any:
    """Return derivatives with respect to positions, lengths, values and, for sums, the box."""
    *arguments, u = in_units(numbers, units)
    by = (0, 1, 2, 3) if derivative is None else (0, 1, 2)
    return jax.jit(jax.grad(loss_of(form, u, derivative, separate), by))(*arguments)


# Units of length, value and loss for which powers of h in derivatives exceed float32, although sums do not.
PLAIN = [(2.0**-34, 2.0**-100, 1.0), (2.0**-36, 2.0**-40, 2.0**-70), (2.0**34, 2.0**110, 1.0), (2.0**34, 1.0, 2.0**110)]
GRADIENT = [(2.0**-28, 2.0**-100, 1.0), (2.0**-36, 2.0**-60, 2.0**-100), (2.0**28, 2.0**100, 1.0)]


@pytest.mark.long
@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize(
    ("derivative", "units"), [*((None, units) for units in PLAIN), *(("gradient", units) for units in GRADIENT)]
)
@pytest.mark.parametrize("form", FORMS)
def test_derivatives_in_any_unit(form: str, derivative: str | None, units: Any, separate: bool) -> None:
    numbers = some(np.float32)
    plain = slopes(form, numbers, (1.0, 1.0, 1.0), derivative, separate)
    result = slopes(form, numbers, units, derivative, separate)
    length, value, loss = units
    common = loss * value / length ** (3 + (derivative is not None))
    for column, reference, unit in zip(result, plain, (length, length, value, length), strict=False):
        expected = np.asarray(reference, np.float64) * (common / unit)
        np.testing.assert_array_equal(column, expected.astype(np.float32))


@pytest.mark.long
@pytest.mark.parametrize("units", [(2.0**-30, 2.0**-100, 1.0), (2.0**28, 2.0**100, 1.0)])
@pytest.mark.parametrize("form", FORMS)
def test_second_derivatives_in_any_unit(form: str, units: Any) -> None:
    numbers = some(np.float32)

    def twice(units: Any) -> Any:
        pos, h, v, box, u = in_units(numbers, units)
        slope = jax.grad(lambda pos, h: loss_of(form, u, None, False)(pos, h, v, box), (0, 1))
        return jax.jit(lambda pos, h: jax.jvp(slope, (pos, h), (pos[::-1], h[::-1])))(pos, h)[1]

    length, value, loss = units
    for column, reference in zip(twice(units), twice((1.0, 1.0, 1.0)), strict=True):
        expected = np.asarray(reference, np.float64) * (loss * value / length**4)
        np.testing.assert_array_equal(column, expected.astype(np.float32))
