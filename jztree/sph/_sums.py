"""Sums over neighbours weighted by a kernel of their distance, and by its derivatives."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from ..arguments import (
    NO_LIMIT,
    SPEC,
    Kind,
    Radii,
    check_in_range,
    check_mass,
    check_real_dtype,
    check_word,
    common_dtype,
    flat,
    is_given,
    row_fault,
)
from ..config import RadiusConfig, without_masses
from ..data import without_padding
from ..jax_ext import Exact, exact_to_float
from ..kernels import KernelTerm
from ..particles import Array, Index, Particles, check_representable, particles_of, shape_of_pos
from ..tree.stage import InputParticles
from ..within import PreparedSearch, SearchArguments, prepare_search, read_sets
from ._lengths import as_lengths, lengths_faults, range_faults
from ._profiles import Profile, check_kernel, profile_of
from ._terms import Rows, kernel_term

_FORMS = ("gather", "scatter", "mean_kernel", "mean_h")
_DERIVATIVES = ("gradient", "divergence", "curl")
_BAD_VALUE = (
    "row {0} has a value that is NaN or infinite, or becomes infinite as %s; remove such particles, or choose other "
    "units, or switch on jax_enable_x64 and give float64."
)
_NO_QUERY = "query_h requires queries; without queries, pass the smoothing lengths of the particles as h."


class SmoothingKernel(NamedTuple):
    """The static parameters of a kernel.

    Attributes:
        name: Its name.
        truncate: Cutoff of a Gaussian, in standard deviations.
        form: The smoothing length that it uses; see `kernel_sums`.
    """

    name: str
    truncate: float
    form: str


def _exact_query_lengths(lengths: Any, arguments: dict[str, Any]) -> Radii:
    if lengths is None:
        return NO_LIMIT
    if arguments["queries"] is None:
        raise ValueError(_NO_QUERY)
    return as_lengths(lengths, shape_of_pos(particles_of(arguments["queries"]))[:-1], "query_h")


def _exact_lengths(lengths: Any, arguments: dict[str, Any]) -> Radii:
    part = particles_of(next(iter(arguments.values())))
    return NO_LIMIT if lengths is None else as_lengths(lengths, shape_of_pos(part)[:-1], "h")


LENGTHS = Kind(SPEC, _exact_lengths)
KERNEL = Kind(None, lambda name, _: check_kernel(name))


@flat(h=LENGTHS, kernel=KERNEL, query_h=Kind(SPEC, _exact_query_lengths), values=Kind(P(-1)))
def kernel_sums(
    part: Particles | Index | Array,
    h: ArrayLike | None,
    *,
    queries: Particles | Array | None = None,
    query_h: ArrayLike | None = None,
    boxsize: ArrayLike | None = None,
    values: Array | None = None,
    kernel: str = "cubic_spline",
    form: str = "gather",
    derivative: str | None = None,
    truncate: float = 4.0,
    cfg: RadiusConfig | None = None,
) -> jax.Array:
    """Sum values over all neighbours, weighted by a smoothing kernel of the distance: ``sum_j v_j W(|x_i - x_j|, h)``.

    If the values are masses, the result is the density of smoothed particle hydrodynamics (SPH). If all values are 1,
    with a single ``h`` and a Gaussian, it is ``n`` times a kernel density estimate. The memory does not depend on the
    number of pairs.

    **Precision.** A top hat and a Gaussian are not 0 at ``h``. For them, float64 distances decide whether a neighbour
    is within ``h``. Smoothing kernels are computed in the precision of the positions, and sums in float64. Sums have
    the same bits for any number of threads. For other numbers of devices, they agree up to the rounding of float64.

    **Cost.** The time grows with the number of pairs within ``h``, with two exceptions. A top hat adds whole nodes of
    the hierarchy, except with ``"mean_h"`` and different lengths. Particles with the same position and length take only
    the time of one particle.

    **Derivatives.** Sums have first and second derivatives, forward and reverse, with respect to positions, values and
    ``h``. They have first derivatives with respect to the box. Sums with ``derivative`` have only first derivatives.
    Derivatives assume that the set of neighbours is fixed. All other derivatives raise an error. A top hat has
    derivatives only with respect to values.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        h: Positive smoothing lengths of the particles, in the unit of the positions: a number (equal on all ranks), or
            ``(n,)``. ``h`` is the radius of the kernel's support. If your code calls half of this radius ``h``, pass
            twice its value.
        queries: ``q`` positions for the sums. None means the particles themselves; each then contributes ``W(0, h)``
            to its sum.
        query_h: The smoothing lengths of the queries: a number, or ``(q,)``. Only with ``queries``. You can leave it
            out if ``h`` is a number or ``form`` is ``"scatter"``. With ``"gather"``, you can instead leave out ``h``
            (None).
        boxsize: The periodic length, or one per dimension; None means open. Equal on all ranks. An index has its own
            box. Only the nearest image of a particle contributes, even if ``h`` exceeds half the box.
        values: ``(n, ...)`` real numbers to sum. None means the masses of ``part``, or ones if ``part`` has no masses.
        kernel: ``"cubic_spline"``, ``"wendland_c2"``, ``"wendland_c4"`` or ``"wendland_c6"``, the smoothing kernels of
            `jztree.density.sph_density`, in 1 to 3 dimensions; ``"gaussian"``, a normal distribution with standard
            deviation ``h / truncate``, cut at ``h``; or ``"top_hat"``. Each is 0 outside ``h``, and its integral over
            space is 1.
        form: The smoothing length to use: ``"gather"``, that of the query; ``"scatter"``, that of the neighbour;
            ``"mean_kernel"``, ``(W(r, h_i) + W(r, h_j)) / 2`` (Hernquist & Katz 1989, ApJS 70, 419); or ``"mean_h"``,
            ``W(r, (h_i + h_j) / 2)`` (Evrard 1988, MNRAS 235, 911).
        derivative: The derivative to compute, with respect to the position of the query: ``"gradient"``,
            ``sum_j v_j dW/dx_i``; ``"divergence"``, ``sum_j v_j . dW/dx_i``, or ``"curl"``, ``sum_j dW/dx_i x v_j``, of
            vectors ``(n, ..., d)``. None means no derivative.
        truncate: Static, from 1 to 12. Only for ``"gaussian"``.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(q, ...)`` sums in the order of the queries, in the dtype of the product of a position and a value in JAX. A
        gradient adds an axis of length ``d``, a divergence removes one, and a curl has three components, or one without
        an axis in 2 dimensions. Rows from ``num`` on are 0.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position or value is NaN or
            infinite, if a traced ``h`` is not positive and finite, if a traced ``boxsize`` is invalid, or if a sum
            exceeds the range of its dtype.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.

    Examples:
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> jz.kernel_sums(pos, 2.0, kernel="top_hat")
        Array([0.5 , 0.75, 0.5 ], dtype=float32)
    """
    cfg = checked_config(cfg, RadiusConfig)
    sources, separate, _, box = read_sets(part, boxsize, queries)
    rows = checked_values(particles_of(part), values, sources)
    lengths = _lengths_of_both(h, query_h, sources, separate, form)
    kind = Derivative.of(derivative, rows.shape[1:], sources.dims)
    args = SumArguments(sources, separate, lengths, box, SmoothingKernel(kernel, truncate, form), cfg)
    return kind.shaped(summed(args, kind.columns(rows), kind.term()), sources.dims)


def checked_values(part: Any, values: Any, sources: InputParticles, name: str = "values") -> jax.Array:
    """Return the values to sum, ``(n, ...)``, in the dtype of the sums.

    Padding, which may hold NaN, becomes 0, because derivatives multiply it by changes of 0.

    Args:
        part: The particles.
        values: The values. None means the masses of ``part``.
        sources: The same particles, parsed.
        name: Name of the argument.

    Raises:
        TypeError: If the values are not an array of real numbers.
        ValueError: If they do not have one row per particle.
    """
    pos = sources.pos
    if values is None:
        mass = check_mass(part)
        values = jnp.ones((), pos.dtype) if mass is None else jnp.asarray(mass)
        values = jnp.broadcast_to(values.reshape(-1) if values.size != 1 else values.reshape(()), pos.shape[:1])
    if isinstance(values, (list, tuple)):
        raise TypeError(f"{name} is a {type(values).__name__}; convert it with numpy.asarray.")
    if not jax.tree_util.all_leaves([values]):
        raise TypeError(
            f"{name} is of the class {type(values).__name__}; it must be one array with one row per particle, "
            f"({pos.shape[0]}, ...). Combine arrays with numpy.stack(arrays, axis=1), or call kernel_sums for each."
        )
    check_representable({name: values})
    check_real_dtype(values, name)
    if np.shape(values)[:1] != pos.shape[:1]:
        raise ValueError(
            f"{name} must have one row per particle, ({pos.shape[0]}, ...); the shape is {np.shape(values)}."
        )
    # For one value per particle, the dtype of the array counts, even if it was made from a Python number.
    values = jnp.asarray(values)  # first, because JAX warns when it cuts other types to 32 bits, but not arrays
    return without_padding(values.astype(common_dtype(pos, values.dtype)), sources.num)


def _lengths_of_both(
    h: ArrayLike | None,
    query_h: ArrayLike | None,
    source_set: InputParticles,
    query_set: InputParticles | None,
    form: str,
) -> tuple[Radii, Radii]:
    """Return smoothing lengths of sources and of queries. Replace unused lengths by the used ones."""
    h, query_h = (lengths if is_given(lengths) else None for lengths in (h, query_h))
    check_word(form, "form", _FORMS)
    if query_set is None:
        if query_h is not None:
            raise ValueError(_NO_QUERY)
        if h is None:
            raise TypeError("h is None; pass the smoothing lengths of the particles, a number or one per particle.")
        both = as_lengths(h, (source_set.num_rows,), "h")
        return both, both
    sources = None if h is None else as_lengths(h, (source_set.num_rows,), "h")
    queries = None if query_h is None else as_lengths(query_h, (query_set.num_rows,), "query_h")
    # An unused length can be any single number. A used length for all particles can replace a missing one.
    if queries is None and sources is not None and (sources.of_each is None or form == "scatter"):
        queries = sources if sources.of_each is None else as_lengths(1.0, (), "query_h")
    if sources is None and queries is not None and (queries.of_each is None or form == "gather"):
        sources = queries if queries.of_each is None else as_lengths(1.0, (), "h")
    if sources is None or queries is None:
        places = queries is None and form != "scatter"
        raise ValueError(
            f"form {form!r} with queries needs {'query_h' if places else 'h'}, the smoothing lengths of the "
            f"{'queries' if places else 'particles'}; pass a number, or one per row."
        )
    return sources, queries


@dataclass
class Derivative:
    """A derivative of a sum.

    Attributes:
        kind: Name of the derivative, or None.
        shape: Shape of the value of one particle.
    """

    kind: str | None
    shape: tuple[int, ...]

    @classmethod
    def of(cls, kind: Any, shape: tuple[int, ...], dims: int) -> Derivative:
        if kind is not None:
            check_word(kind, "derivative", _DERIVATIVES)
        if kind in ("divergence", "curl") and shape[-1:] != (dims,):
            raise ValueError(
                f"the {kind} needs vectors, values of shape (n, ..., {dims}), but the shape of each particle's "
                f"values is {shape}."
            )
        if kind == "curl" and dims not in (2, 3):
            raise ValueError(f"a curl needs positions in 2 or 3 dimensions, not {dims}.")
        return cls(kind, shape)

    def columns(self, values: jax.Array) -> jax.Array:
        return values.reshape(values.shape[0], math.prod(self.shape))

    def term(self) -> tuple[int, int]:
        """Return the number of indices of the values, and of the sums."""
        return {None: (0, 0), "gradient": (0, 1), "divergence": (1, 0), "curl": (0, 1)}[self.kind]

    def shaped(self, sums: jax.Array, dims: int) -> jax.Array:
        q = sums.shape[0]
        if self.kind == "divergence":
            return sums.reshape(q, *self.shape[:-1])
        if self.kind is None:
            return sums.reshape(q, *self.shape)
        return self.of_gradient(sums.reshape(q, *self.shape, dims))

    def of_gradient(self, sums: jax.Array) -> jax.Array:
        """Return this derivative from the derivatives of every column by every component."""
        dims = sums.shape[-1]
        gradient = sums.reshape(sums.shape[0], *self.shape, dims)
        if self.kind == "gradient":
            return gradient
        if self.kind == "divergence":
            return jnp.trace(gradient, axis1=-2, axis2=-1)
        # by[d][c]: the derivative of component c along d
        by = [[gradient[..., c, d] for c in range(dims)] for d in range(dims)]
        if dims == 2:
            return by[0][1] - by[1][0]
        return jnp.stack([by[1][2] - by[2][1], by[2][0] - by[0][2], by[0][1] - by[1][0]], axis=-1)


@dataclass
class SumArguments:
    """The arguments of a sum.

    Attributes:
        sources: Particles to sum over.
        queries: Queries. None if they are the sources.
        lengths: Smoothing lengths of sources and of queries.
        box: Periodic box.
        kernel: The smoothing kernel.
        cfg: Options.
    """

    sources: InputParticles
    queries: InputParticles | None
    lengths: tuple[Radii, Radii]
    box: Exact
    kernel: SmoothingKernel
    cfg: RadiusConfig


def summed(args: SumArguments, value: jax.Array, order: tuple[int, int], sum_powers: int = 0) -> jax.Array:
    """Sum values over neighbours, in the rows of the queries.

    Args:
        args: The other arguments of the sum.
        value: ``(n, c)``, 0 in padding.
        order: Numbers of inward and outward derivatives.
        sum_powers: See `kernels.KernelTerm`.
    """
    sources, queries = args.sources, args.queries
    query_set, dims = sources if queries is None else queries, sources.dims
    box = args.box
    profile = profile_of(args.kernel.name, dims, args.kernel.truncate)
    if profile.is_top_hat and order != (0, 0):
        raise ValueError("a top hat has no gradient, divergence or curl; choose another kernel.")
    if value.shape[1] == 0:
        return jnp.zeros((query_set.num_rows, 0), value.dtype)
    of_sources, of_queries = args.lengths
    nums = sources.num, query_set.num
    faults = _faults(args, value, nums, profile.norm, dims + sum(order) - sum_powers)
    words = None if of_sources.of_each is None else jnp.asarray(of_sources.of_each.words)
    needs = args.kernel.form != "gather" and words is not None
    min_reach = _largest(of_sources, sources.num) if needs else None
    sources = replace(sources, data=(value, words))
    prepared = prepare_search(
        SearchArguments(sources, queries, of_queries, box, without_masses(args.cfg), faults, least_reach=min_reach)
    )
    # Padding rows are set to 0, and so are their derivatives, which may be NaN.
    sums = without_padding(
        prepared.stage.send_back(_terms(prepared, profile, args, (*order, sum_powers), box)), nums[1]
    )
    out_of_range, units = _are_not_finite(sums), "another unit of length or of the values"
    return comm.after(sums, check_in_range(out_of_range, sums.dtype, "the sum in row {0}", units, "values"))


def _faults(args: SumArguments, value: jax.Array, nums: tuple[Any, Any], norm: float, powers: int) -> list[comm.Fault]:
    """Return the possible faults of values and lengths.

    Args:
        args: The arguments of the sum.
        value: ``(n, c)``, the values.
        nums: Numbers of valid rows of sources and of queries.
        norm: Norm of the kernel.
        powers: See `range_faults`.
    """
    bad = row_fault(_are_not_finite(value), None, _BAD_VALUE % value.dtype)
    faults = [bad, *lengths_faults(args.lengths[0], nums[0], "h")]
    if args.queries is not None:
        faults += lengths_faults(args.lengths[1], nums[1], "query_h")
    return faults + range_faults(value, nums, args.lengths, args.kernel.form, norm, powers)


@functools.partial(jax.jit, inline=True)
def _are_not_finite(rows: jax.Array) -> jax.Array:
    return ~jnp.isfinite(rows).all(axis=1)


def _largest(lengths: Radii, num: int | jax.Array) -> jax.Array:
    """Return the largest length of this rank."""
    assert lengths.of_each is not None
    number = jax.lax.stop_gradient(jnp.asarray(exact_to_float(lengths.of_each)))
    return jnp.max(without_padding(number, num), initial=0)


def _terms(
    prepared: PreparedSearch, profile: Profile, args: SumArguments, order: tuple[int, int, int], box: Exact
) -> jax.Array:
    value, words = prepared.columns
    of_sources, _ = args.lengths
    sources = Rows(prepared.sources, _words(of_sources.for_all) if words is None else words)
    together = prepared.queries is None
    queries = sources if prepared.queries is None else Rows(prepared.queries, _query_words(prepared))
    terms = []
    for form in {"mean_kernel": ("gather", "scatter")}.get(args.kernel.form, (args.kernel.form,)):
        inward, outward, sum_powers = order
        term = KernelTerm(*profile, form, inward, outward, 0, images=False, together=together, sum_powers=sum_powers)
        terms.append(kernel_term(term, value, sources, queries, box))
    return terms[0] if len(terms) == 1 else 0.5 * terms[0] + 0.5 * terms[1]


def _words(numbers: Exact | None) -> jax.Array:
    assert numbers is not None
    return jnp.asarray(numbers.words).reshape(1, -1)


def _query_words(prepared: PreparedSearch) -> jax.Array:
    """Return the smoothing lengths of the z-ordered queries."""
    if prepared.radii.of_each is None:
        return _words(prepared.radii.for_all)
    words = jnp.asarray(prepared.radii.of_each.words)
    return words if prepared.rows is None else kernels.gather_rows(words, prepared.rows)
