"""One-line descriptions of particles, catalogues and hierarchies, in any state.

A description must never fail or wait: debuggers, error messages and JAX transformations print it. So arrays show their
shapes and dtypes, and their values only if these are available at once. The values of arrays that are traced, still
being computed, deleted or on other processes are not.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

_MOST_BYTES = 2**26  # largest array that is fetched from a device for a description


def describe_particles(part: Any) -> str:
    """Describe particles, such as ``ParticleData(110,592 particles in 3D, float32: pos, mass, vel, id)``.

    Args:
        part: A dataclass with the field ``pos``, ``(n, d)``, or ``(r, n, d)`` if ``num`` is ``(r,)``.
    """
    pos, name = part.pos, type(part).__name__
    if not _is_array(pos) or len(pos.shape) < 2:
        return _plainly(part)
    num = getattr(part, "num", None)
    is_stacked = len(pos.shape) == 3 and num is not None and np.ndim(num) == 1
    rows = pos.shape[:-1]
    layout = f" ({_rows(rows)})" if is_stacked else ""
    if num is None:
        count = f"{' x '.join(f'{n:,}' for n in rows)} particle{'' if rows == (1,) else 's'}"
    elif (known := _known(num)) is not None:
        total = int(known.sum())
        count = _plural(total, "particle")
        layout = layout or ("" if total == rows[0] else f" ({_rows(rows)})")
    else:
        count = f"up to {_plural(int(np.prod(rows)), 'particle')}"
    fields = [f.name for f in dataclasses.fields(part) if f.name not in ("num", "num_total")]
    names = ", ".join(field for field in fields if getattr(part, field) is not None)
    return f"{name}({count}{layout} in {pos.shape[-1]}D, {pos.dtype}: {names}{_state(pos, num)})"


def describe_catalogue(cata: Any) -> str:
    """Describe a catalogue with its range of group sizes, as ``FofCatalogue(1,234 groups, 20..8,432 particles)``."""
    count, name = cata.count, type(cata).__name__
    if not _is_array(count) or len(count.shape) not in (1, 2):
        return _plainly(cata)
    ngroups = _known(cata.ngroups)
    if ngroups is None:
        return f"{name}(up to {_plural(int(np.prod(count.shape)), 'group')}{_state(count, cata.ngroups)})"
    total = int(ngroups.sum())
    padded = len(count.shape) == 2 or total != count.shape[0]
    layout = f" ({_rows(count.shape)})" if padded else ""
    sizes = ""
    if total and count.size and (counts := _known(count)) is not None:
        used = counts[np.arange(counts.shape[-1]) < ngroups[..., None]]
        low, high = int(used.min()), int(used.max())
        sizes = f", {f'{low:,}' if low == high else f'{low:,}..{high:,}'} particles"
    return f"{name}({_plural(total, 'group')}{layout}{sizes}{_state(count, cata.ngroups)})"


def describe_hierarchy(th: Any) -> str:
    """Describe a hierarchy, such as ``TreeHierarchy(planes of 4,608, 288 and 36 nodes in 3D, float32)``."""
    lower = th.flat_lower
    if not _is_array(lower) or len(lower.shape) < 2:
        return _plainly(th)
    sizes = [f"{size:,}" for size in th.plane_sizes]
    if len(sizes) > 1:
        planes = f"planes of {', '.join(sizes[:-1])} and {sizes[-1]} nodes"
    else:
        planes = f"a plane of {_plural(th.plane_sizes[0], 'node')}"
    devices = f" on {_plural(lower.shape[0], 'device')}" if len(lower.shape) == 3 else ""
    masses = "" if th.flat_mass is None else ", with masses"
    return f"{type(th).__name__}({planes}{devices} in {lower.shape[-1]}D, {lower.dtype}{masses}{_state(lower)})"


def describe_arrays(arrays: Any) -> str:
    """Describe a named tuple of arrays, such as ``Label(irank: int32[1000], igroup: int32[1000])``."""
    values = dict(zip(arrays._fields, arrays, strict=True))
    if not all(map(_is_array, values.values())):
        return f"{type(arrays).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"
    words = [f"{name}: {value.dtype}[{','.join(map(str, value.shape))}]" for name, value in values.items()]
    return f"{type(arrays).__name__}({', '.join(words)}{_state(*arrays)})"


def _plainly(value: Any) -> str:
    """Return the default text of a dataclass, for the pytrees of axes, specs and similar objects that JAX creates."""
    fields = ", ".join(f"{f.name}={getattr(value, f.name)!r}" for f in dataclasses.fields(value))
    return f"{type(value).__name__}({fields})"


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct))


def _known(value: Any) -> np.ndarray | None:
    """Return the values of ``value``, or None if they are not available at once."""
    if _obstacle(value) or not isinstance(value, (jax.Array, np.ndarray, np.generic, int)):
        return None
    if isinstance(value, jax.Array) and value.nbytes > _MOST_BYTES:
        return None
    try:
        return np.asarray(value)
    except (RuntimeError, ValueError):  # the computation has failed
        return None


def _obstacle(value: Any) -> str:
    """Return the reason why the values of an array are not available; empty if they are."""
    if isinstance(value, jax.core.Tracer):
        return "traced"
    if isinstance(value, jax.ShapeDtypeStruct):
        return "shapes only"
    if not isinstance(value, jax.Array):
        return ""
    if value.is_deleted():
        return "deleted"
    if not value.is_fully_addressable:
        return "on several processes"
    ready = getattr(value, "is_ready", None)
    return "" if ready is None or ready() else "still being computed"


def _state(*values: Any) -> str:
    """Return the obstacles of the arrays, as the end of a description."""
    obstacles = dict.fromkeys(filter(None, map(_obstacle, values)))
    return f"; {', '.join(obstacles)}" if obstacles else ""


def _rows(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return _plural(shape[0], "row")
    return f"{_plural(shape[0], 'device')} x {_plural(shape[1], 'row')}"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
