"""Products whose factors go beyond the range of numbers where they themselves do not."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["exponent_of", "exponents_of", "scaled_product"]


def exponents_of(lengths: jax.Array) -> jax.Array:
    """Of positive numbers ``(n, w)``, in the words of `jztree.jax_ext.Exact`, rounded to the 24 bits of float32; int32,
    ``(n,)``. over_powers in native/radius/kernel_rule.h has the same ones.
    """
    words = jax.lax.stop_gradient(lengths)
    digits, exponent = _parts(words[..., 0])
    if words.shape[-1] > 1:
        return exponent + words[..., -1].astype(jnp.int32)
    return exponent + _parts(digits.astype(jnp.float32))[1]


def exponent_of(number: jax.Array) -> jax.Array:
    """int32 ``e``, so that ``number`` is ``2**e`` times one from 1 to 2; far below all others for 0."""
    return _parts(number)[1]


def scaled_product(fixed: jax.Array, moving: jax.Array, exponent: jax.Array) -> jax.Array:
    """``fixed * moving * 2**exponent``, which overflows or vanishes only if that does.

    fixed, moving: real numbers, the second as given or as the first is. exponent: int32. Both factors can be
    differentiated as often as one likes, and derivatives, too, are out of range only if their values are.
    """
    shape = jnp.broadcast_shapes(fixed.shape, moving.shape, exponent.shape)
    arguments = fixed, moving.astype(fixed.dtype), exponent
    return _product.bind(*(jnp.broadcast_to(one, shape) for one in arguments))


# Of arrays of one shape. A primitive, because the digits of a number say nothing of its derivative, and a derivative
# must be linear.
_product = Primitive("jztree_scaled_product")


@_product.def_abstract_eval
def _result(*factors: Any) -> Any:
    return jax.make_jaxpr(_run)(*factors).out_avals[0]


@jax.jit
def _run(fixed: jax.Array, moving: jax.Array, exponent: jax.Array) -> jax.Array:
    digits, own = _parts(fixed)
    most = jnp.finfo(digits.dtype).maxexp - 2
    found, left = moving * digits, jnp.clip(exponent + own, -4 * most, 4 * most)
    for _ in range(4):
        step = jnp.clip(left, -most, most)
        found, left = found * _power_of_two(step, digits.dtype), left - step
    return found


_product.def_impl(_run)
mlir.register_lowering(_product, mlir.lower_fun(_run, multiple_results=False))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    fixed, moving, exponent = primals
    by_fixed, by_moving, _ = tangents
    changes = []
    for other, change in ((moving, by_fixed), (fixed, by_moving)):
        if not isinstance(change, ad.Zero):
            changes.append(_product.bind(other, change, exponent))
    found = _product.bind(*primals)
    return found, functools.reduce(jnp.add, changes) if changes else ad.Zero(jax.typeof(found).to_tangent_aval())


def _transposed(change: Any, fixed: Any, moving: Any, exponent: Any) -> list[Any]:
    """The second factor is the linear one, as `_jvp` has it."""
    if isinstance(change, ad.Zero):
        return [None, ad.Zero(moving.aval), None]
    return [None, _product.bind(fixed, change, exponent), None]


def _mapped(arrays: Sequence[jax.Array], dims: Sequence[int | None]) -> Any:
    size = next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)
    each = [
        jnp.broadcast_to(array, (size, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)
        for array, dim in zip(arrays, dims, strict=True)
    ]
    return _product.bind(*each), 0


ad.primitive_jvps[_product] = _jvp
ad.primitive_transposes[_product] = _transposed
batching.primitive_batchers[_product] = _mapped


def _parts(number: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``digits`` from 1 to 2, or 0, and ``exponent``, so that ``number = digits * 2**exponent``.

    Of all finite numbers, also of subnormal ones, which XLA takes for 0. What is not finite is its own digits.
    """
    kind = jnp.finfo(number.dtype)
    one = kind.maxexp - 1  # the exponent of 1, as it is stored
    bits = jax.lax.bitcast_convert_type(number, f"int{kind.bits}")
    sign, rest = bits & jnp.iinfo(bits.dtype).min, bits & jnp.iinfo(bits.dtype).max
    tiny = rest < 1 << kind.nmant
    # Subnormal numbers are integers in the unit of the smallest.
    whole = jax.lax.bitcast_convert_type(rest.astype(number.dtype), bits.dtype)
    rest = jnp.where(tiny, whole, rest)
    exponent = (rest >> kind.nmant) - one + jnp.where(tiny, 1 - one - kind.nmant, 0)
    fraction = rest & ((1 << kind.nmant) - 1)
    digits = jax.lax.bitcast_convert_type(sign | fraction | (one << kind.nmant), number.dtype)
    finite = jnp.isfinite(number)
    digits = jnp.where(finite, jnp.where(rest == 0, 0, digits), number)
    # 0 is 0 whatever else it is multiplied with.
    return digits, jnp.where(finite, jnp.where(rest == 0, -8 * one, exponent), 0).astype(jnp.int32)


def _power_of_two(exponent: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Of exponents of normal numbers. The function of JAX rounds."""
    kind = jnp.finfo(dtype)
    bits = (exponent + (kind.maxexp - 1)).astype(f"int{kind.bits}") << kind.nmant
    return jax.lax.bitcast_convert_type(bits, dtype)
