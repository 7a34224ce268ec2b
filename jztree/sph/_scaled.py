"""Products that are in range although intermediate factors may overflow or underflow."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from .._transform.primitives import primitive_of


def exponents_of(lengths: jax.Array) -> jax.Array:
    """Return the binary exponents of positive numbers, ``(n,)`` int32, after rounding to the 24 bits of float32.

    over_powers in native/sph/kernel_rule.h computes the same exponents.

    Args:
        lengths: ``(n, w)``, the words of `jztree.jax_ext.Exact`.
    """
    words = jax.lax.stop_gradient(lengths)
    digits, exponent = _parts(words[..., 0])
    if words.shape[-1] > 1:
        return exponent + words[..., -1].astype(jnp.int32)
    return exponent + _parts(digits.astype(jnp.float32))[1]


def exponent_of(number: jax.Array) -> jax.Array:
    """Return int32 ``e`` such that ``number`` is ``2**e`` times a number from 1 to 2; for 0, far below all others."""
    return _parts(number)[1]


def scaled_product(fixed: jax.Array, moving: jax.Array, exponent: jax.Array) -> jax.Array:
    """Return ``fixed * moving * 2**exponent``, which overflows or vanishes only if the exact result does.

    The product can be differentiated any number of times by both factors. Derivatives are out of range only if their
    exact values are.

    Args:
        fixed: Real numbers.
        moving: Real numbers, which are converted to the dtype of ``fixed``.
        exponent: int32.
    """
    shape = jnp.broadcast_shapes(fixed.shape, moving.shape, exponent.shape)
    arguments = fixed, moving.astype(fixed.dtype), exponent
    return _product.bind(*(jnp.broadcast_to(array, shape) for array in arguments))


@jax.jit
def _run(fixed: jax.Array, moving: jax.Array, exponent: jax.Array) -> jax.Array:
    digits, fixed_exponent = _parts(fixed)
    max_step = jnp.finfo(digits.dtype).maxexp - 2
    product, exponent_left = moving * digits, jnp.clip(exponent + fixed_exponent, -4 * max_step, 4 * max_step)
    for _ in range(4):
        step = jnp.clip(exponent_left, -max_step, max_step)
        product, exponent_left = product * _power_of_two(step, digits.dtype), exponent_left - step
    return product


# All arrays have one shape. It is a primitive because the derivative must be linear, and cannot be derived from the
# digits of a number.
_product = primitive_of("jztree_scaled_product", _run)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    fixed, moving, exponent = primals
    by_fixed, by_moving, _ = tangents
    changes = []
    for constant, change in ((moving, by_fixed), (fixed, by_moving)):
        if not isinstance(change, ad.Zero):
            changes.append(_product.bind(constant, change, exponent))
    product = _product.bind(*primals)
    return product, functools.reduce(jnp.add, changes) if changes else ad.Zero(jax.typeof(product).to_tangent_aval())


def _transposed(change: Any, fixed: Any, moving: Any, exponent: Any) -> list[Any]:
    """Transpose with respect to the second factor, the linear one in `_jvp`."""
    if isinstance(change, ad.Zero):
        return [None, ad.Zero(moving.aval), None]
    return [None, _product.bind(fixed, change, exponent), None]


def _mapped(arrays: Sequence[jax.Array], dims: Sequence[int | None]) -> Any:
    size = next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)
    operands = [
        jnp.broadcast_to(array, (size, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)
        for array, dim in zip(arrays, dims, strict=True)
    ]
    return _product.bind(*operands), 0


ad.primitive_jvps[_product] = _jvp
ad.primitive_transposes[_product] = _transposed
batching.primitive_batchers[_product] = _mapped


@functools.partial(jax.jit, inline=True)
def _parts(number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split numbers into digits and exponents.

    This works for all finite numbers, including subnormal ones, which XLA flushes to 0.

    Returns:
        ``digits`` from 1 to 2, or 0, and ``exponent``, such that ``number = digits * 2**exponent``. For infinity and
        NaN, ``digits`` is the number itself.
    """
    kind = jnp.finfo(number.dtype)
    bias = kind.maxexp - 1  # the stored exponent of 1
    bits = jax.lax.bitcast_convert_type(number, f"int{kind.bits}")
    sign, magnitude = bits & jnp.iinfo(bits.dtype).min, bits & jnp.iinfo(bits.dtype).max
    tiny = magnitude < 1 << kind.nmant
    # Subnormal numbers are integer multiples of the smallest.
    normal_bits = jax.lax.bitcast_convert_type(magnitude.astype(number.dtype), bits.dtype)
    magnitude = jnp.where(tiny, normal_bits, magnitude)
    exponent = (magnitude >> kind.nmant) - bias + jnp.where(tiny, 1 - bias - kind.nmant, 0)
    fraction = magnitude & ((1 << kind.nmant) - 1)
    digits = jax.lax.bitcast_convert_type(sign | fraction | (bias << kind.nmant), number.dtype)
    finite = jnp.isfinite(number)
    digits = jnp.where(finite, jnp.where(magnitude == 0, 0, digits), number)
    # 0 stays 0 for any other factors.
    return digits, jnp.where(finite, jnp.where(magnitude == 0, -8 * bias, exponent), 0).astype(jnp.int32)


def _power_of_two(exponent: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Return exact powers of two in the range of normal numbers. The JAX function rounds."""
    kind = jnp.finfo(dtype)
    bits = (exponent + (kind.maxexp - 1)).astype(f"int{kind.bits}") << kind.nmant
    return jax.lax.bitcast_convert_type(bits, dtype)
