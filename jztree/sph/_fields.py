"""Derivatives of fields at particles, by smoothed particle hydrodynamics (SPH)."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from ..arguments import SPEC, first_row
from ..config import RadiusConfig, checked_config
from ..data import with_computed
from ..jax_ext import with_twins
from ..particles import Particles
from ..tree import TreeHierarchy, check_hierarchy
from ..within import check_both
from ._lengths import as_lengths
from ._scaled import exponent_of, scaled_product
from ._sums import Derivative, SmoothingKernel, SumArguments, checked_values, exact_arguments, summed

_NO_MASS = (
    "the particles within the smoothing length of row {0} have a total mass of 0, or the derivative there is outside "
    "the range of %s; use larger lengths, or choose other units."
)


@with_twins({"part": P(-1), "h": SPEC, "field": P(-1), "boxsize": P(), "th": P(-1)}, P(-1), prepare=exact_arguments)
@with_computed
def sph_derivative(
    part: Particles | ArrayLike,
    h: ArrayLike | None,
    field: ArrayLike,
    kind: str = "gradient",
    boxsize: ArrayLike | None = None,
    th: TreeHierarchy | None = None,
    kernel: str = "cubic_spline",
    truncate: float = 4.0,
    cfg: RadiusConfig | None = None,
) -> jax.Array:
    """Compute the gradient, divergence or curl of a field at the particles that carry it.

    With the field ``A``, masses ``m``, ``rho_i = sum_j m_j W_ij`` and ``W_ij = W(|x_i - x_j|, h_i)``, the results are
    (Price 2012, J. Comput. Phys. 231, 759)

    * gradient: ``sum_j m_j (A_j - A_i) dW_ij/dx_i / rho_i``
    * divergence: ``sum_j m_j (A_j - A_i) . dW_ij/dx_i / rho_i``
    * curl: ``sum_j m_j dW_ij/dx_i x (A_j - A_i) / rho_i``

    The results are 0 for constant fields. For sums over ``A_j`` without ``- A_i``, or at other positions, see
    `kernel_sums`. All results have first derivatives with respect to positions, masses, field and ``h``.

    Args:
        part: See `kernel_sums`. If the particles have no masses, each mass is 1.
        h: See `kernel_sums`.
        field: ``(n, ...)`` real numbers; for the divergence and the curl, vectors ``(n, ..., d)``.
        kind: ``"gradient"``, ``"divergence"`` or ``"curl"``, in 2 or 3 dimensions.
        boxsize: See `kernel_sums`.
        th: See `kernel_sums`.
        kernel: See `kernel_sums`.
        truncate: See `kernel_sums`.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(n, ..., d)`` for a gradient, and the shapes of `kernel_sums` for the others; 0 in rows from ``num`` on.

    Raises:
        TypeError: See `kernel_sums`.
        ValueError: See `kernel_sums`.
        ValueError or jax.errors.JaxRuntimeError: At run time, if the density at a particle is 0.
    """
    cfg = checked_config(cfg, RadiusConfig)
    check_hierarchy(th)
    given, _, _ = check_both(part, None, th)
    if kind is None:
        raise ValueError("kind is None; it must be gradient, divergence or curl.")
    values = checked_values(part, field, given, "field")
    what = Derivative.of(kind, values.shape[1:], given.dims)
    mass = _relative(checked_values(part, None, given).astype(values.dtype))
    lengths = as_lengths(h, (given.num_rows,), "h")
    args = SumArguments(given, None, (lengths, lengths), boxsize, SmoothingKernel(kernel, truncate, "gather"), cfg)
    columns = what.columns(values)
    weighed = jnp.concatenate([mass[:, None], mass[:, None] * columns], axis=1)
    # Compute both sums without the powers of h that cancel in their quotient.
    dims = given.dims
    slopes = summed(args, weighed, (0, 1), dims).reshape(len(columns), columns.shape[1] + 1, dims)
    # The difference loses no more digits than the rounding of the field did, because the sum of mass slopes is not
    # above the sum of their absolute values.
    change = slopes[:, 1:] - columns[:, :, None] * slopes[:, :1]
    used = jnp.arange(len(columns), dtype=jnp.int32) < given.num
    density = jnp.where(used, summed(args, mass[:, None], (0, 0), dims)[:, 0], 1)
    found = jnp.where(used[:, None, None], change / density[:, None, None], 0)
    row = first_row(~jnp.isfinite(found).all(axis=(1, 2)))
    found = comm.after(found, comm.check(0, row >= 0, [row], _NO_MASS % found.dtype))
    return what.of_gradient(found)


def _relative(mass: jax.Array) -> jax.Array:
    """Divide masses by a power of two, so that the largest over all ranks is from 1 to 2."""
    most = jnp.max(jnp.abs(jax.lax.stop_gradient(mass)), initial=0)
    (most,) = comm.all_max(most[None])
    return scaled_product(mass, jnp.ones((), mass.dtype), -exponent_of(most))
