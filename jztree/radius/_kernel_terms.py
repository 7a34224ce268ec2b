"""Sums over neighbours that can be differentiated as often as the native kernel has derivatives of W.

All of them are one operation of JAX, linear in the values, with a kernel W or a derivative of it by components of the
query's position x_i and by h (`kernels.KernelTerm`). Its derivative by x_i is the same sum with one derivative of W
more, whose index is a new one of the sums; by the positions of sources, with one more, minus, whose index is a new one
of values that are multiplied with what the sources move; by h likewise; by a box length, with one more, times how many
periods lie between a pair. Transposed, sources and queries change places, and with them gather and scatter. So
forward and reverse mode, and both of both, take walks of the tree and no lists of pairs.

W and its derivatives go with high powers of 1/h, which may be far beyond the range of values where a derivative is not:
the kernel is multiplied with a value or a change on one side of a walk, and with the other one on the other side. So
those powers are taken out of the walk as powers of two (`KernelTerm.value_powers` and ``sum_powers``), and out of the
product of value and change by `scaled_product`.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .. import comm, kernels
from .._transform.exact import exact_change
from ..jax_ext import Exact, exact_to_float
from ..kernels import KernelTerm
from ._profiles import Profile
from ._scaled import exponents_of, scaled_product

__all__ = ["Rows", "kernel_term"]

_OTHER_FORM = {"gather": "scatter", "scatter": "gather", "mean_h": "mean_h"}
_NO_THIRD = (
    "sums over a kernel have two derivatives by positions and smoothing lengths together, and its gradient, divergence "
    "and curl one; put jax.lax.stop_gradient around what is to count as constant."
)
_NO_SECOND_BY_BOX = (
    "sums over a kernel have first derivatives by the box only; put jax.lax.stop_gradient around boxsize, if it is to "
    "count as constant."
)
_NO_TOP_HAT = (
    "the sum over a top hat jumps when a particle enters, so it has no derivative by positions, h or box; choose "
    "another kernel, or put jax.lax.stop_gradient around what is to count as constant."
)


class Rows(NamedTuple):
    """Z-ordered particles with their hierarchy and smoothing lengths, one for all or one for each: words ``(1, w)`` or
    ``(n, w)``, as `jztree.jax_ext.Exact` has them.
    """

    tree: kernels.Tree
    h: jax.Array

    def arrays(self) -> tuple[jax.Array, ...]:
        """Positions and smoothing lengths first."""
        pos, *others = self.tree.arrays
        return pos, self.h, *(jax.lax.stop_gradient(other) for other in others)


class _Call(NamedTuple):
    """What is compiled in."""

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
    """`kernels.kernel_sums`, differentiable by values, positions, smoothing lengths and box."""
    sizes = sources.tree.plane_sizes, queries.tree.plane_sizes
    # The derivative by what all ranks share is the sum of those on each.
    arrays = map(comm.vary, (value, box.words, *sources.arrays(), *queries.arrays()))
    return _sums.bind(*arrays, call=_Call(term, *sizes))


# A side has a position, smoothing lengths, and five arrays of the hierarchy.
_SIDE = 7


def _split(arrays: Sequence[Any]) -> tuple[Any, Any, Sequence[Any], Sequence[Any]]:
    """Values, box, and the arrays of sources and of queries."""
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


_sums = Primitive("jztree_kernel_sums")


@_sums.def_effectful_abstract_eval
def _result(*arrays: Any, call: _Call) -> Any:
    known = jax.make_jaxpr(functools.partial(_run, call=call))(*arrays)
    return known.out_avals[0], known.effects


_sums.def_impl(jax.jit(_run, static_argnames="call"))
mlir.register_lowering(_sums, mlir.lower_fun(_run, multiple_results=False))


def _mapped(arrays: Sequence[jax.Array], dims: Sequence[int | None], *, call: _Call) -> Any:
    """One after the other along the mapped axis."""
    moving = [jnp.moveaxis(array, dim, 0) for array, dim in zip(arrays, dims, strict=True) if dim is not None]

    def one(rows: list[jax.Array]) -> jax.Array:
        given = iter(rows)
        full = [array if dim is None else next(given) for array, dim in zip(arrays, dims, strict=True)]
        return _sums.bind(*full, call=call)

    return jax.lax.map(one, moving), 0


batching.primitive_batchers[_sums] = _mapped


def _transposed(change: Any, value: Any, box: Any, *sides: Any, call: _Call) -> list[Any]:
    """The cotangent of the values: of all arguments, they alone are linear."""
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
    sums, others = _sums.bind(*primals, call=call), primals[1:]
    changes = []
    if not isinstance(value_dot, ad.Zero):
        changes.append(_sums.bind(value_dot, *others, call=call))
    moved = _Moved(call, value, tuple(others))
    for change, by in (
        (box_dot, moved.by_box),
        (source_dots[0], moved.by_source),
        (query_dots[0], moved.by_query),
        (source_dots[1], moved.by_source_h),
        (query_dots[1], moved.by_query_h),
    ):
        if not isinstance(change, ad.Zero) and (found := by(change)) is not None:
            changes.append(found)
    zero = ad.Zero(jax.typeof(sums).to_tangent_aval())
    return sums, functools.reduce(jnp.add, changes) if changes else zero


ad.primitive_jvps[_sums] = _jvp


class _Moved(NamedTuple):
    """How sums of the values change with everything else. others: the arguments behind the values."""

    call: _Call
    value: jax.Array
    others: tuple[jax.Array, ...]

    def by_box(self, change: jax.Array) -> jax.Array:
        _, box, _, _ = self._arguments()
        return self._outward(-exact_change(Exact(box), Exact(change))[None, :], images=True)

    def by_query(self, change: jax.Array) -> jax.Array:
        return self._outward(change)

    def by_source(self, change: jax.Array) -> jax.Array:
        moved, shift = self._shifted("value_powers", inward=self.call.term.inward + 1)
        each = scaled_product(self.value[:, :, None], change[:, None, :], shift[:, None, None])
        return -moved._bind(each.reshape(self.value.shape[0], -1))

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
        """With one derivative more by the query's position, times a vector."""
        moved, shift = self._shifted("sum_powers", outward=self.call.term.outward + 1, images=images)
        found, dims = moved._bind(self.value), change.shape[-1]
        each = found.reshape(found.shape[0], found.shape[1] // dims, dims)
        return jnp.sum(scaled_product(each, change[:, None, :], shift[:, None, None]), axis=-1)

    def _share(self, of_others: str) -> float:
        """What a smoothing length counts, that of others in one form."""
        form = self.call.term.form
        return 0.5 if form == "mean_h" else 0.0 if form == of_others else 1.0

    def _arguments(self) -> tuple[Any, Any, Sequence[Any], Sequence[Any]]:
        return _split((self.value, *self.others))

    def _shifted(self, which: str, **changes: Any) -> tuple["_Moved", jax.Array]:
        """Other sums, without any powers of h, of which the new ones are taken out on one side, and the exponents
        ``(n,)`` or ``(1,)`` that put these back.
        """
        if self.call.term.images:
            raise ValueError(_NO_SECOND_BY_BOX)
        box, *sides = self.others
        mine, theirs = sides[:_SIDE], sides[_SIDE:]
        if which == "sum_powers":
            mine, theirs = theirs, mine
        term = self.call.term._replace(**changes)
        before, dims = getattr(term, which), mine[0].shape[1]
        new = dims + term.inward + term.outward + term.by_h - term.value_powers - term.sum_powers
        if before == 0 and term.form == ("gather" if which == "value_powers" else "scatter"):
            # The smoothing lengths of this side do not count, and may be anything.
            mine = [mine[0], _least(theirs), *mine[2:]]
        others = (box, *theirs, *mine) if which == "sum_powers" else (box, *mine, *theirs)
        moved = _Moved(self.call.changed(**{**changes, which: before + new}), self.value, others)
        return moved, -new * exponents_of(mine[1])

    def _bind(self, value: jax.Array) -> jax.Array:
        term = self.call.term
        if Profile(term.shape, term.profile).is_top_hat:
            raise ValueError(_NO_TOP_HAT)
        if term.inward + term.outward + term.by_h > 2:
            raise ValueError(_NO_THIRD)
        return _sums.bind(value, *self.others, call=self.call)


def _column(h: jax.Array, change: jax.Array) -> jax.Array:
    """How much smoothing lengths change, by their words."""
    return exact_change(Exact(h), Exact(change))[:, None]


def _least(side: Sequence[Any]) -> jax.Array:
    """The smallest smoothing length of a side, in words."""
    _, h, num, *_ = side
    h = jax.lax.stop_gradient(h)
    if h.shape[0] < 2:
        return h
    number = jnp.asarray(exact_to_float(Exact(h)))
    used = jnp.arange(h.shape[0], dtype=jnp.int32) < num.reshape(())
    return h[jnp.argmin(jnp.where(used, number, jnp.inf))][None, :]
