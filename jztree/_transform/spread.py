"""Warn about arrays that are distributed over devices, because native kernels do not share the work."""

import sys
import warnings
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from ..particles import name_of


def warn_if_spread(function: str, arguments: dict[str, Any]) -> None:
    """Issue a RuntimeWarning if an array argument is distributed over devices, at the line that calls the caller.

    XLA cannot split a native kernel, so outside of mapped functions it gives all rows to each device. Replicated
    arrays, and calls from within the library, do not warn.
    """
    leaf = next(filter(_is_spread, jax.tree.leaves(arguments)), None)
    if leaf is None or _caller_of_caller().partition(".")[0] == "jztree":
        return
    devices = len(leaf.sharding.device_set)
    warnings.warn(
        f"{function}: {name_of(leaf, arguments)} is spread over {devices} devices, and every device does the whole "
        "work; to share it, give each device its rows, with pos.reshape(devices, -1, d) or "
        f"jztree.data.expand_particles, and call {function}.smap(mesh, jit=True).",
        RuntimeWarning,
        stacklevel=3,
    )


def _is_spread(leaf: Any) -> bool:
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
        return False
    return type(leaf.sharding) is not SingleDeviceSharding and not leaf.is_fully_replicated


def _caller_of_caller() -> str:
    """Return the module that calls the function that calls `warn_if_spread`."""
    return str(sys._getframe(3).f_globals.get("__name__", ""))
