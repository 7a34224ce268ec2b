"""Mass-weighted means of particle properties over groups.

The catalogue kernel computes mean velocities exactly, with derivatives, and over groups that straddle ranks. So this
module passes properties to it in place of velocities, as many at a time as there are dimensions.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm
from ..arguments import check_real_dtype, common_dtype, row_fault
from ..config import CatalogueConfig
from ..data import get_num
from ..particles import Particles, check_representable

# Positions, masses and velocities; see `._group_order.catalogue_columns`.
Columns = tuple[jax.Array, jax.Array | None, jax.Array | None]
_VELOCITY = 5  # index among the sums of a kernel
_NOT_FINITE = "row {0}%s has a %s that is NaN or infinite, so its mean is undefined; remove such particles."
_NO_REDSHIFT = "row {0}%s has a zplus1 that is not positive and finite; give 1 + z, the inverse of the scale factor."


def mean_faults(part: Particles | ArrayLike, cfg: CatalogueConfig, of: str) -> list[comm.Fault]:
    """Return the possible faults of properties to average.

    Args:
        part: The particles.
        cfg: Options.
        of: Text that identifies the particles in messages.
    """
    num, faults = get_num(part), []
    for name, rows in _averaged(part, cfg).items():
        bad = ~jnp.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))
        faults.append(row_fault(bad, num, _NOT_FINITE % (of, name)))
    redshift = _rows_of(part, "zplus1")
    if redshift is not None:
        faults.append(row_fault(~((redshift > 0) & jnp.isfinite(redshift)), num, _NO_REDSHIFT % of))
    return faults


def mean_columns(
    grouped: Any, columns: Columns, sums_of: Callable[[Columns], tuple[Any, Any]], cfg: CatalogueConfig
) -> dict[str, Any]:
    """Return the columns ``v_rad``, ``scale_factor`` and ``means`` of a catalogue by name, if present.

    Args:
        grouped: Particles in group order.
        columns: See `._group_order.catalogue_columns`.
        sums_of: See `._group_order.make_catalogue`.
        cfg: Options.
    """
    averaged = _averaged(grouped, cfg)
    redshift = _rows_of(grouped, "zplus1")
    if redshift is not None:
        averaged["scale_factor"] = 1 / redshift
    if not averaged:
        return {}
    means = _means(averaged, columns, sums_of)
    named = {name: means.pop(name) for name in ("v_rad", "scale_factor") if name in means}
    if "v_rad" in cfg.means:
        means["v_rad"] = named["v_rad"]
    return named | ({"means": means} if cfg.means else {})


def _means(
    averaged: dict[str, jax.Array], columns: Columns, sums_of: Callable[[Columns], tuple[Any, Any]]
) -> dict[str, jax.Array]:
    pos, mass, _ = columns
    n, dims = pos.shape
    dtype = common_dtype(pos, *averaged.values())
    flat = jnp.concatenate([rows.reshape(n, -1).astype(dtype) for rows in averaged.values()], axis=1)
    blocks = []
    for start in range(0, flat.shape[1], dims):
        block = flat[:, start : start + dims]
        block = jnp.pad(block, [(0, 0), (0, dims - block.shape[1])])
        _, sums = sums_of((pos.astype(dtype), None if mass is None else mass.astype(dtype), block))
        blocks.append(sums[_VELOCITY])
    joined = jnp.concatenate(blocks, axis=1)
    means, start = {}, 0
    for name, rows in averaged.items():
        width = int(np.prod(rows.shape[1:]))
        means[name] = joined[:, start : start + width].reshape(-1, *rows.shape[1:])
        start += width
    return means


def _averaged(part: Particles | ArrayLike, cfg: CatalogueConfig) -> dict[str, jax.Array]:
    """Return the properties to average without conversion, ``(n, ...)`` real numbers by name.

    Raises:
        ValueError: If a requested property is missing, or does not have one row per particle.
        TypeError: If a property is not a real number.
    """
    columns = {}
    for name in dict.fromkeys(("v_rad", *cfg.means)):
        rows = _rows_of(part, name)
        if rows is not None:
            columns[name] = rows
        elif name in cfg.means:
            raise ValueError(
                f"CatalogueConfig.means contains {name!r}, but the particles have no such property; remove that "
                "name, or add the property."
            )
    return columns


def _rows_of(part: Any, name: str) -> jax.Array | None:
    """Return a property as real numbers ``(n, ...)``, None if absent. A shared value is repeated for each particle."""
    rows = getattr(part, name, None)
    if rows is None:
        return None
    check_real_dtype(rows, name)
    check_representable({name: rows})
    n = part.pos.shape[0]
    if np.ndim(rows) > 0 and np.shape(rows)[0] != n:
        raise ValueError(
            f"{name} must be one number or have one row per particle, {n} rows; its shape is {np.shape(rows)}."
        )
    column = jnp.asarray(rows)
    real = column if jnp.issubdtype(column.dtype, jnp.floating) else column.astype(common_dtype(part.pos))
    return jnp.broadcast_to(real, (n,)) if real.ndim == 0 else real
