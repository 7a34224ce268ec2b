"""Derivatives of fields at particles, by smoothed particle hydrodynamics (SPH)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from .._options import checked_config
from ..arguments import Kind, first_row, flat
from ..config import RadiusConfig
from ..particles import Array, Index, Particles, particles_of
from ..within import read_sets
from ._lengths import as_lengths
from ._scaled import exponent_of, scaled_product
from ._sums import KERNEL, LENGTHS, Derivative, SmoothingKernel, SumArguments, checked_values, summed

_NO_MASS = (
    "the particles within the smoothing length of row {0} have a total mass of 0, or the derivative there is outside "
    "the range of %s; use larger lengths, or choose other units."
)


@flat(h=LENGTHS, kernel=KERNEL, field=Kind(P(-1)))
def sph_derivative(
    part: Particles | Index | Array,
    h: ArrayLike | None,
    field: Array,
    *,
    derivative: str = "gradient",
    boxsize: ArrayLike | None = None,
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
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either. If the particles have no masses, each mass is 1.
        h: Positive smoothing lengths of the particles, in the unit of the positions: a number (equal on all ranks), or
            ``(n,)``. ``h`` is the radius of the kernel's support. If your code calls half of this radius ``h``, pass
            twice its value.
        field: ``(n, ...)`` real numbers; for the divergence and the curl, vectors ``(n, ..., d)``.
        derivative: ``"gradient"``, ``"divergence"`` or ``"curl"``, in 2 or 3 dimensions.
        boxsize: The periodic length, or one per dimension; None means open. Equal on all ranks. An index has its own
            box. Only the nearest image of a particle contributes, even if ``h`` exceeds half the box.
        kernel: ``"cubic_spline"``, ``"wendland_c2"``, ``"wendland_c4"`` or ``"wendland_c6"``, the smoothing kernels of
            `jztree.density.sph_density`, in 1 to 3 dimensions, or ``"gaussian"``, a normal distribution with standard
            deviation ``h / truncate``, cut at ``h``. Each is 0 outside ``h``, and its integral over space is 1.
        truncate: Static, from 1 to 12. Only for ``"gaussian"``.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(n, ..., d)`` for a gradient, and the shapes of `kernel_sums` for the others; 0 in rows from ``num`` on.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a number is NaN, infinite or out of
            range, or if the density at a particle is 0.

    Examples:
        >>> x = np.arange(10, dtype=np.float32)
        >>> gradient = jz.sph_derivative(x[:, None], 4.0, 3 * x)
        >>> np.asarray(gradient)[4:6, 0].round(3)  # particles near the ends lack neighbours on one side
        array([3., 3.], dtype=float32)
    """
    cfg = checked_config(cfg, RadiusConfig)
    sources, _, _, box = read_sets(part, boxsize, None)
    part = particles_of(part)
    if derivative is None:
        raise ValueError("derivative is None; it must be gradient, divergence or curl.")
    values = checked_values(part, field, sources, "field")
    kind = Derivative.of(derivative, values.shape[1:], sources.dims)
    mass = _relative(checked_values(part, None, sources).astype(values.dtype))
    lengths = as_lengths(h, (sources.num_rows,), "h")
    args = SumArguments(sources, None, (lengths, lengths), box, SmoothingKernel(kernel, truncate, "gather"), cfg)
    columns = kind.columns(values)
    weighed = jnp.concatenate([mass[:, None], mass[:, None] * columns], axis=1)
    # Compute both sums without the powers of h that cancel in their quotient.
    dims = sources.dims
    slopes = summed(args, weighed, (0, 1), dims).reshape(len(columns), columns.shape[1] + 1, dims)
    # The difference loses no more digits than the rounding of the field did, because the sum of mass slopes is not
    # above the sum of their absolute values.
    change = slopes[:, 1:] - columns[:, :, None] * slopes[:, :1]
    used = jnp.arange(len(columns), dtype=jnp.int32) < sources.num
    density = jnp.where(used, summed(args, mass[:, None], (0, 0), dims)[:, 0], 1)
    result = jnp.where(used[:, None, None], change / density[:, None, None], 0)
    row = first_row(~jnp.isfinite(result).all(axis=(1, 2)))
    result = comm.after(result, comm.check(0, row >= 0, [row], _NO_MASS % result.dtype))
    return kind.of_gradient(result)


def _relative(mass: jax.Array) -> jax.Array:
    """Divide masses by a power of two, so that the largest over all ranks is from 1 to 2."""
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(mass)), initial=0)
    (largest,) = comm.all_max(largest[None])
    return scaled_product(mass, jnp.ones((), mass.dtype), -exponent_of(largest))
