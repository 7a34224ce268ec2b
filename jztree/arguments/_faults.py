"""Invalid rows at run time: the first one, and their number."""

import functools

import jax
import jax.numpy as jnp

from .. import comm, kernels


def first_row(marked: jax.Array, num: int | jax.Array | None = None) -> jax.Array:
    """Return the first marked row, int32, or -1.

    Args:
        marked: ``(n,)``, 0 if not marked.
        num: Number of rows to search. None means all.
    """
    return _marked_rows(marked, num)[0]


def row_fault(marked: jax.Array, num: int | jax.Array | None, sentence: str) -> comm.Fault:
    """Return the fault that a row is marked.

    Args:
        marked: ``(n,)``, 0 if not marked.
        num: Number of rows to search. None means all.
        sentence: See `rows_fault`.
    """
    first, number = _marked_rows(marked, num)
    return rows_fault(first, number, sentence)


def rows_fault(first: jax.Array, number: jax.Array, sentence: str) -> comm.Fault:
    """Return the fault that any row is bad.

    Args:
        first: The first bad row, from `kernels.bounds`.
        number: The number of bad rows, from `kernels.bounds`.
        sentence: Contains ``{0}`` for the first row. The message ends with the number of bad rows if there are several.
    """
    several = sentence.removesuffix(".") + " ({1} such rows)."
    return comm.Fault(number, [first, number], f"{sentence}\n{several}")


def check_in_range(
    out_of_range: jax.Array,
    dtype: jnp.dtype,
    quantity: str,
    units: str = "other units",
    columns: str = "positions and masses",
) -> jax.Array:
    """Return 0. Raise on every rank if a result is outside the range of its dtype.

    Args:
        out_of_range: ``(q,)``, whether a result is.
        dtype: The dtype of the results.
        quantity: The result in the message, with ``{0}`` for its row.
        units: What to choose, such as other units.
        columns: The arguments that can be float64.
    """
    row = first_row(out_of_range)
    wider = "" if dtype == jnp.float64 else f", or switch on jax_enable_x64 and give {columns} in float64"
    return comm.check(0, row >= 0, [row], f"{quantity} is outside the range of {dtype}; choose {units}{wider}.")


@functools.partial(jax.jit, inline=True)
def value_of_row(values: jax.Array, row: jax.Array) -> jax.Array:
    """Return the value of a row, or of the first one if ``row`` is negative; without values, ``row``."""
    return values[jnp.maximum(row, 0)] if values.shape[0] else row


def _marked_rows(marked: jax.Array, num: int | jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Return the first marked row and the number of marked rows, int32.

    This uses the kernel that scans positions: it runs in parallel and, unlike XLA code, is already compiled.
    """
    _, _, first, number = kernels.bounds(_column(marked), marked.shape[0] if num is None else num)
    return first, number


@functools.partial(jax.jit, inline=True)
def _column(marked: jax.Array) -> jax.Array:
    """Return positions that are out of range in the rows that are ``marked``."""
    # Not NaN, which jax_debug_nans would report.
    return jnp.where(marked.astype(bool), jnp.finfo(jnp.float32).max, jnp.float32(0))[:, None]
