"""Sums over neighbours, differentiable as often as the native kernel has derivatives of W.

All sums are one JAX primitive that is linear in the values. Its kernel is W, or a derivative of W by components of the
query's position x_i and by h (`kernels.KernelTerm`). Its derivatives are sums of the same kind with one more derivative
of W:

- by x_i: the sums get a new index;
- by positions of sources: with opposite sign; the values get a new index, from their product with the change of the
  positions;
- by h: likewise;
- by a box length: times the number of periods between the particles of a pair.

The transpose exchanges sources with queries, and gather with scatter. Forward and reverse mode, and all combinations,
therefore use tree walks and need no lists of pairs.

W and its derivatives contain high powers of 1/h, which may be far out of range even if the derivative itself is not,
because one side of a walk multiplies the kernel by a value or a change, and the other side by the other factor. These
powers are therefore taken out of the walk as powers of two (`KernelTerm.value_powers` and ``sum_powers``), and out of
the product of value and change by `scaled_product`.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from .. import comm, kernels
from .._transform.exact import exact_change
from .._transform.primitives import primitive_of
from ..jax_ext import Exact, exact_to_float
from ..kernels import KernelTerm
from ._profiles import Profile
from ._scaled import exponents_of, scaled_product

_OTHER_FORM = {"gather": "scatter", "scatter": "gather", "mean_h": "mean_h"}
_NO_THIRD = (
    "sums over a kernel have up to two derivatives by positions and smoothing lengths together, and gradient, "
    "divergence and curl have one; put jax.lax.stop_gradient around arguments that are constant."
)
_NO_SECOND_BY_BOX = (
    "sums over a kernel have only first derivatives by the box; put jax.lax.stop_gradient around boxsize if it is "
    "constant."
)
_NO_TOP_HAT = (
    "the sum over a top hat jumps when a particle enters, so it has no derivative by positions, h or box; choose "
    "another kernel, or put jax.lax.stop_gradient around arguments that are constant."
)


class Rows(NamedTuple):
    """Z-ordered particles with their hierarchy and smoothing lengths.

    Attributes:
        tree: The particles and their hierarchy.
        h: One length for all particles, or one per particle, as the words ``(1, w)`` or ``(n, w)`` of
            `jztree.jax_ext.Exact`.
    """

    tree: kernels.Tree
    h: jax.Array

    def arrays(self) -> tuple[jax.Array, ...]:
        """Return all arrays, with positions and smoothing lengths first."""
        pos, *node_arrays = self.tree.arrays
        return pos, self.h, *(jax.lax.stop_gradient(array) for array in node_arrays)


class _Call(NamedTuple):
    """The static parameters of the primitive.

    Attributes:
        term: The kernel of the sum.
        source_sizes: Plane sizes of the hierarchy of the sources.
        query_sizes: Plane sizes of the hierarchy of the queries.
    """

    term: KernelTerm
    source_sizes: tuple[int, ...]
    query_sizes: tuple[int, ...]

    def changed(self, **changes: Any) -> "_Call":
        return self._replace(term=self.term._replace(**changes))

    def transposed(self) -> "_Call":
        term = self.term
        turned = term._replace(
            form=_OTHER_FORM[term.form],
            inward=term.outward,
            outward=term.inward,
            value_powers=term.sum_powers,
            sum_powers=term.value_powers,
        )
        return _Call(turned, self.query_sizes, self.source_sizes)


def kernel_term(term: KernelTerm, value: jax.Array, sources: Rows, queries: Rows, box: Exact) -> jax.Array:
    """Compute `kernels.kernel_sums`, differentiable by values, positions, smoothing lengths and box."""
    sizes = sources.tree.plane_sizes, queries.tree.plane_sizes
    # The derivative by an array shared by all ranks is the sum of the derivatives on each rank.
    arrays = map(comm.vary, (value, box.words, *sources.arrays(), *queries.arrays()))
    return _sums.bind(*arrays, call=_Call(term, *sizes))


# Each side has a position, smoothing lengths, and five arrays of the hierarchy.
_SIDE = 7


def _split(arrays: Sequence[Any]) -> tuple[Any, Any, Sequence[Any], Sequence[Any]]:
    """Return values, box, and the arrays of sources and of queries."""
    value, box, *sides = arrays
    return value, box, sides[:_SIDE], sides[_SIDE:]


def _run(*arrays: jax.Array, call: _Call) -> jax.Array:
    value, box, source, query = _split(arrays)
    sources, source_h = _side(source, call.source_sizes)
    queries, query_h = _side(query, call.query_sizes)
    return kernels.kernel_sums(call.term, value, sources, source_h, queries, query_h, Exact(box))


def _side(arrays: Sequence[Any], plane_sizes: tuple[int, ...]) -> tuple[kernels.Tree, Exact]:
    pos, h, num, splits, particle_splits, lower, upper = arrays
    return kernels.Tree(pos, num, splits, particle_splits, lower, upper, plane_sizes), Exact(h)


_sums = primitive_of("jztree_kernel_sums", _run, static="call")


def _mapped(arrays: Sequence[jax.Array], dims: Sequence[int | None], *, call: _Call) -> Any:
    """Loop over the mapped axis."""
    moving = [jnp.moveaxis(array, dim, 0) for array, dim in zip(arrays, dims, strict=True) if dim is not None]

    def one(rows: list[jax.Array]) -> jax.Array:
        remaining = iter(rows)
        full = [array if dim is None else next(remaining) for array, dim in zip(arrays, dims, strict=True)]
        return _sums.bind(*full, call=call)

    return jax.lax.map(one, moving), 0


batching.primitive_batchers[_sums] = _mapped


def _transposed(change: Any, value: Any, box: Any, *sides: Any, call: _Call) -> list[Any]:
    """Return the cotangent of the values, the only linear argument."""
    assert not any(map(ad.is_undefined_primal, (box, *sides)))
    if isinstance(change, ad.Zero):
        return [ad.Zero(value.aval), None, *[None] * len(sides)]
    if call.term.images:
        raise ValueError(_NO_SECOND_BY_BOX)
    sign = (-1) ** (call.term.inward + call.term.outward)
    back = _sums.bind(change, box, *sides[_SIDE:], *sides[:_SIDE], call=call.transposed())
    return [sign * back, None, *[None] * len(sides)]


ad.primitive_transposes[_sums] = _transposed


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: _Call) -> tuple[Any, Any]:
    value, _, _, _ = _split(primals)
    value_dot, box_dot, source_dots, query_dots = _split(tangents)
    sums, operands = _sums.bind(*primals, call=call), primals[1:]
    changes = []
    if not isinstance(value_dot, ad.Zero):
        changes.append(_sums.bind(value_dot, *operands, call=call))
    moved = _Moved(call, value, tuple(operands))
    for change, by in (
        (box_dot, moved.by_box),
        (source_dots[0], moved.by_source),
        (query_dots[0], moved.by_query),
        (source_dots[1], moved.by_source_h),
        (query_dots[1], moved.by_query_h),
    ):
        if not isinstance(change, ad.Zero) and (term := by(change)) is not None:
            changes.append(term)
    zero = ad.Zero(jax.typeof(sums).to_tangent_aval())
    return sums, functools.reduce(jnp.add, changes) if changes else zero


ad.primitive_jvps[_sums] = _jvp


class _Moved(NamedTuple):
    """Changes of the sums due to all arguments other than the values.

    Attributes:
        call: Static parameters.
        value: The values.
        operands: The arguments after the values.
    """

    call: _Call
    value: jax.Array
    operands: tuple[jax.Array, ...]

    def by_box(self, change: jax.Array) -> jax.Array:
        _, box, _, _ = self._arguments()
        return self._outward(-exact_change(Exact(box), Exact(change))[None, :], images=True)

    def by_query(self, change: jax.Array) -> jax.Array:
        return self._outward(change)

    def by_source(self, change: jax.Array) -> jax.Array:
        moved, shift = self._shifted("value_powers", inward=self.call.term.inward + 1)
        terms = scaled_product(self.value[:, :, None], change[:, None, :], shift[:, None, None])
        return -moved._bind(terms.reshape(self.value.shape[0], -1))

    def by_query_h(self, change: jax.Array) -> jax.Array | None:
        share = self._share("scatter")
        if share == 0:
            return None
        moved, shift = self._shifted("sum_powers", by_h=self.call.term.by_h + 1)
        _, _, _, (_, h, *_) = self._arguments()
        return share * scaled_product(moved._bind(self.value), _column(h, change), shift[:, None])

    def by_source_h(self, change: jax.Array) -> jax.Array | None:
        share = self._share("gather")
        if share == 0:
            return None
        moved, shift = self._shifted("value_powers", by_h=self.call.term.by_h + 1)
        _, _, (_, h, *_), _ = self._arguments()
        return moved._bind(share * scaled_product(self.value, _column(h, change), shift[:, None]))

    def _outward(self, change: jax.Array, images: bool = False) -> jax.Array:
        """Return the sums with one more derivative by the query's position, contracted with a vector."""
        moved, shift = self._shifted("sum_powers", outward=self.call.term.outward + 1, images=images)
        sums, dims = moved._bind(self.value), change.shape[-1]
        gradients = sums.reshape(sums.shape[0], sums.shape[1] // dims, dims)
        return jnp.sum(scaled_product(gradients, change[:, None, :], shift[:, None, None]), axis=-1)

    def _share(self, of_others: str) -> float:
        """Return the weight of a smoothing length in the kernel: 0 in the form ``of_others``, which ignores it."""
        form = self.call.term.form
        return 0.5 if form == "mean_h" else 0.0 if form == of_others else 1.0

    def _arguments(self) -> tuple[Any, Any, Sequence[Any], Sequence[Any]]:
        return _split((self.value, *self.operands))

    def _shifted(self, kind: str, **changes: Any) -> tuple["_Moved", jax.Array]:
        """Return the sums for another term, with all powers of h factored out.

        Args:
            which: The side on which to factor out the new powers: ``"value_powers"`` or ``"sum_powers"``.
            changes: Fields of the other term.

        Returns:
            The sums, and the exponents ``(n,)`` or ``(1,)`` that restore the new powers.
        """
        if self.call.term.images:
            raise ValueError(_NO_SECOND_BY_BOX)
        box, *sides = self.operands
        side, other_side = sides[:_SIDE], sides[_SIDE:]
        if kind == "sum_powers":
            side, other_side = other_side, side
        term = self.call.term._replace(**changes)
        before, dims = getattr(term, kind), side[0].shape[1]
        new = dims + term.inward + term.outward + term.by_h - term.value_powers - term.sum_powers
        if before == 0 and term.form == ("gather" if kind == "value_powers" else "scatter"):
            # The smoothing lengths of this side are not used and may have any value.
            side = [side[0], _least(other_side), *side[2:]]
        operands = (box, *other_side, *side) if kind == "sum_powers" else (box, *side, *other_side)
        moved = _Moved(self.call.changed(**{**changes, kind: before + new}), self.value, operands)
        return moved, -new * exponents_of(side[1])

    def _bind(self, value: jax.Array) -> jax.Array:
        term = self.call.term
        if Profile(term.shape, term.profile).is_top_hat:
            raise ValueError(_NO_TOP_HAT)
        if term.inward + term.outward + term.by_h > 2:
            raise ValueError(_NO_THIRD)
        return _sums.bind(value, *self.operands, call=self.call)


def _column(h: jax.Array, change: jax.Array) -> jax.Array:
    """Return the changes of smoothing lengths, given in words."""
    return exact_change(Exact(h), Exact(change))[:, None]


def _least(side: Sequence[Any]) -> jax.Array:
    """Return the smallest smoothing length of a side, in words."""
    _, h, num, *_ = side
    h = jax.lax.stop_gradient(h)
    if h.shape[0] < 2:
        return h
    number = jnp.asarray(exact_to_float(Exact(h)))
    used = jnp.arange(h.shape[0], dtype=jnp.int32) < num.reshape(())
    return h[jnp.argmin(jnp.where(used, number, jnp.inf))][None, :]
