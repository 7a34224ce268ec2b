"""Decide whether to use the ragged all_to_all on a mesh, after a test on that mesh.

It moves only the rows that leave a rank, but it is new: XLA has it on GPUs only. It has lost rows
(marin-community/marin#8077) and aborted programs on more than 32 devices (openxla/xla#47283). So a mesh uses it if all
its devices are in one computer, are at most 32, and pass the test together. Between computers, it has not been
measured against the dense exchange. All processes of a mesh reach the same decision, because the test
ends with a collective.
"""

import contextlib
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..particles import one_line
from .innermost import Innermost

METHODS = ("dense", "ragged")
_WORDS = 3  # words of a row in the test
# Rows of the largest message: a message of a few bytes, and one that needs several blocks of a kernel.
_LARGEST = (6, 6000)
# XLA's kernel writes past its table of peers on more devices. CUDA then ends the process, so no test can detect it.
_MAX_DEVICES = 32

_method: Innermost[str] = Innermost()


@cache
def _method_of_process() -> str | None:
    """Return the method in JZTREE_EXCHANGE. It is read once, so that everything a process compiles agrees."""
    method = os.environ.get("JZTREE_EXCHANGE") or None
    if method not in (None, *METHODS):
        raise ValueError(f"the environment variable JZTREE_EXCHANGE must be 'dense' or 'ragged', not {method!r}.")
    return method


def method_of_trace() -> str:
    """Return the exchange method in the traced function, one of `METHODS`.

    Outside of the library's own maps it is dense, because the devices are unknown there.
    """
    return _method_of_process() or _method.get("dense")


def exchanging(method: str) -> contextlib.AbstractContextManager[None]:
    """Trace with this exchange method."""
    return _method.set(method)


@cache
def method_on(mesh: Mesh) -> str:
    """Return the exchange method for a mesh; warn if its ragged exchange is faulty."""
    if method := _method_of_process():
        return method
    if isinstance(mesh, AbstractMesh):  # the mesh of a context, with unknown devices
        return "dense"
    devices = mesh.devices.ravel()
    if devices[0].platform == "cpu" or not 1 < len(devices) <= _MAX_DEVICES or len(set(map(_computer_of, devices))) > 1:
        return "dense"
    fault = fault_on(mesh)
    if fault:
        warnings.warn(
            f"XLA's ragged all_to_all {fault} on these {len(devices)} devices, so particles travel in dense rounds, "
            "which gives the same results and takes longer. A newer jaxlib may fix this; JZTREE_EXCHANGE=dense in the "
            "environment skips the test.",
            RuntimeWarning,
            stacklevel=2,
        )
    return "dense" if fault else "ragged"


def _computer_of(device: jax.Device) -> int:
    """Return the number of a device's computer. XLA numbers computers by boot; the attribute has been renamed."""
    for name in ("partition_index", "slice_index"):
        number = getattr(device, name, None)
        if number is not None:
            return int(number)
    return int(device.process_index)


def fault_on(mesh: Mesh) -> str:
    """Describe the fault of the ragged all_to_all on a mesh; empty if it works.

    The test runs in a separate thread. Otherwise it would become part of the trace in this one.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_find_fault, mesh).result()


def _find_fault(mesh: Mesh) -> str:
    try:
        fault = "moves rows to wrong places" if any(_is_wrong(mesh, largest) for largest in _LARGEST) else ""
    except Exception as error:
        fault = f"fails ({one_line(error)})"
    elsewhere = _any_process(mesh, bool(fault))
    return fault or ("fails in another process" if elsewhere else "")


def _any_process(mesh: Mesh, flag: bool) -> bool:
    """Return whether ``flag`` is set in any process of the mesh."""
    flags = jax.make_array_from_callback(
        (mesh.size,), NamedSharding(mesh, P(mesh.axis_names)), lambda _: np.full(1, flag, np.int32)
    )
    largest = jax.shard_map(
        lambda value: jax.lax.pmax(value[0], mesh.axis_names), mesh=mesh, in_specs=P(mesh.axis_names), out_specs=P()
    )
    return bool(jax.jit(largest)(flags))


def _is_wrong(mesh: Mesh, largest: int) -> bool:
    """Return whether any rank receives wrong rows. Some messages are empty, and some ranks send nothing."""
    axes, ndev = mesh.axis_names, mesh.size
    ranks = np.arange(ndev)
    rows = ndev * largest

    def local() -> jax.Array:
        me = jax.lax.axis_index(axes)
        sizes = ((5 * ranks[:, None] + 3 * ranks) % 7 * (largest // 6) * (ranks[:, None] % 4 != 2)).astype(np.int32)
        starts = (np.cumsum(sizes, axis=1) - sizes).astype(np.int32)  # start of each message at its sender
        places = (np.cumsum(sizes, axis=0) - sizes).astype(np.int32)  # and at its receiver
        row = jnp.arange(rows, dtype=jnp.int32)
        arrived = jax.lax.ragged_all_to_all(
            _marks(me, row),
            jnp.zeros((rows, _WORDS), jnp.uint32) + 0 * me.astype(jnp.uint32),
            jnp.asarray(starts)[me],
            jnp.asarray(sizes)[me],
            jnp.asarray(places)[me],
            jnp.asarray(sizes)[:, me],
            axis_name=axes,
        )
        ends = jnp.asarray(places + sizes)[:, me]
        source = jnp.minimum(jnp.searchsorted(ends, row, side="right").astype(jnp.int32), ndev - 1)
        sent = _marks(source, jnp.asarray(starts)[source, me] + row - jnp.asarray(places)[source, me])
        expected = jnp.where((row < ends[-1])[:, None], sent, 0)
        return jax.lax.pmax(jnp.any(arrived != expected).astype(jnp.int32), axes)

    return bool(jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(), out_specs=P()))())


def _marks(rank: jax.Array, row: jax.Array) -> jax.Array:
    """Return rows ``(n, words)`` uint32 that encode their origin."""
    word = jnp.arange(_WORDS, dtype=jnp.uint32)
    return (rank + 1).astype(jnp.uint32)[..., None] * 2**24 + row.astype(jnp.uint32)[:, None] * _WORDS + word
