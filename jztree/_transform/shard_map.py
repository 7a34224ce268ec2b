"""Map one function over one mesh: place, compile, run, and run again if a buffer was too small (`.capacity`).

Specs are the specs of `jax.shard_map`, and two more: ``P(-1)`` means all axes of the mesh, for any names, and None
marks an argument that is static, that is, compiled in. `.mappers` has the functions that create such maps.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .. import stats
from .._options import copy_config, is_config
from ..particles import Index, check_devices
from . import capacity, ragged
from .agreement import check_same
from .specs import axes_of, called_by_name, is_spec, name_all_axes, spec_of_each_leaf

_FEW = 64  # largest number of shared values that are compared between processes
# Time between two looks at the devices: a fraction of the time so far, and its limit. Most calls are over before the
# first look at each device, which takes longer.
_POLL_FRACTION, _POLL_SECONDS, _QUICK_SECONDS = 0.01, 0.01, 0.1


def varying_axes(*values: Any) -> frozenset[str]:
    """Return the mesh axes along which any of the arrays differs between devices.

    Args:
        values: Pytrees of arrays.

    Returns:
        Names of axes; empty outside `jax.shard_map`.
    """
    return frozenset().union(*(jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(values)))


def vary_along(value: jax.Array, axes: frozenset[str]) -> jax.Array:
    """Return ``value`` with the type of an array that differs along all of ``axes``.

    Args:
        value: An array.
        axes: Names of mesh axes.

    Returns:
        The same array with another type.
    """
    missing = tuple(sorted(axes - varying_axes(value)))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def is_concrete(value: Any) -> bool:
    """Return whether the numbers in ``value`` are known, that is, not traced."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def trace_key() -> tuple[Any, ...]:
    """Return the dependencies of a trace apart from arguments; part of the key of everything compiled."""
    return capacity.learnt(), stats.recording()


def copy_configs(arguments: dict[str, Any]) -> dict[str, Any]:
    """Copy configurations among arguments by name, so that later edits cannot reach compiled code."""
    return {name: copy_config(value) if is_config(value) else value for name, value in arguments.items()}


def known_integers(static: dict[str, Any]) -> dict[str, Any]:
    """Convert JAX integers and one-integer arrays in static arguments, which are unhashable, to Python integers."""
    return {name: plain_integer(value) for name, value in static.items()}


def plain_integer(value: Any) -> Any:
    """Convert a known JAX integer, or an array of one integer, to a Python integer; return anything else unchanged."""
    is_one = isinstance(value, (jax.Array, np.ndarray)) and value.ndim == 0 and is_concrete(value)
    return int(value) if is_one and jnp.issubdtype(value.dtype, jnp.integer) else value


def _dtype_of(leaf: Any) -> Any:
    """Return the dtype of a leaf, quickly for arrays."""
    return leaf.dtype if isinstance(leaf, (jax.Array, np.ndarray)) else jnp.result_type(leaf)


def check_hashable(function: str, static: dict[str, Any], advice: str = "") -> None:
    """Raise TypeError if a static argument cannot be hashed for the compilation key.

    Args:
        function: Name of the function.
        static: Static arguments by name.
        advice: A remedy, for the message.
    """
    for name, value in static.items():
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{function}: argument {name!r} is static (compiled in), so it must be hashable, such as a number or a "
                f"tuple, but it is of the class {type(value).__name__}{advice}."
            ) from None


def _are_hashable(static: dict[str, Any]) -> bool:
    try:
        hash(tuple(static.values()))
    except TypeError:
        return False
    return True


@dataclass(frozen=True)
class _Static:
    """The compiled-in part of a call: arguments by name, and other dependencies of the trace."""

    values: tuple[tuple[str, Any], ...]
    trace: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Mapping options; see `expanding_shard_map` and `shard_map_constructor`."""

    in_specs: Any
    out_specs: Any
    axis_names: tuple[str, ...] | None
    input_tiled: bool
    output_tiled: bool
    check_vma: bool
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    jit_options: dict[str, Any] = field(default_factory=dict)


def _of_one_kind(mesh: Mesh) -> Mesh:
    """Return ``mesh``, or one of the same devices with Auto axes only if its axes are of different kinds.

    JAX can choose the layout of arrays or follow their types, but not both at once.
    """
    if len(set(mesh.axis_types)) == 1:
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def _wait_for_devices(done: jax.Array) -> None:
    """Wait for the devices of this process, and raise the first error.

    After an error in a host callback of one device, the others may wait for that one for ever. `jax.block_until_ready`
    waits for the devices one after another, so it may not see the error.
    """
    start = time.monotonic()
    while len(done.sharding.addressable_devices) > 1 and not done.is_ready():  # type: ignore[attr-defined]
        seconds = time.monotonic() - start
        if seconds > _QUICK_SECONDS:
            blocks = [shard.data for shard in done.addressable_shards]
            jax.block_until_ready([block for block in blocks if block.is_ready()])
        time.sleep(min(_POLL_FRACTION * seconds, _POLL_SECONDS))
    jax.block_until_ready(done)


def _forget_failed_callbacks(devices: Iterable[jax.Device]) -> None:
    """Run an empty host callback on each device.

    JAX keeps the error of the last run with callbacks, and raises it again in `jax.effects_barrier` and at the exit.
    """
    for device in devices:
        with jax.default_device(device):
            _run_empty_callback()


@jax.jit
def _run_empty_callback() -> None:
    jax.debug.callback(lambda: None)


class Mapped:
    """A function mapped over one mesh. Calls take arguments by name."""

    def __init__(self, f: Callable[..., Any], mesh: Any, options: Options, in_specs: dict[str, Any]) -> None:
        self.f, self.mesh, self.options = f, _of_one_kind(mesh), options
        self.axes = options.axis_names or tuple(mesh.axis_names)
        self.in_specs = {name: name_all_axes(spec, self.axes) for name, spec in in_specs.items()}
        self.out_specs = name_all_axes(options.out_specs, self.axes)
        self.name = getattr(f, "__name__", "a mapped function")
        # An abstract mesh, that of a context in which something is compiled, has no known devices.
        devices = () if isinstance(mesh, AbstractMesh) else np.ravel(mesh.devices)
        self.processes = {device.process_index for device in devices}
        # Structures and shapes of arguments that have passed the check, which takes a tenth of a millisecond.
        self.checked: set[Any] = set()
        # Buffer sizes learnt in earlier runs, for each kind of call.
        self.capacities: dict[Any, dict[str, int]] = {}

        def run(static: _Static, dynamic: dict[str, Any]) -> Any:
            return self._run(static, dynamic)

        run.__name__ = run.__qualname__ = self.name
        self.compiled = jax.jit(run, static_argnums=0, **options.jit_options)

    def __call__(self, arguments: dict[str, Any], jit: bool) -> Any:
        static = {name: value for name, value in arguments.items() if self.in_specs.get(name) is None}
        static = known_integers(copy_configs(static))
        dynamic = {name: value for name, value in arguments.items() if name not in static}
        if not jit and not _are_hashable(static):
            self._check_leading_axes(dynamic)
            return self._run(_Static(tuple(static.items()), trace_key()), dynamic)[0]
        check_hashable(self.name, static, "; give it the spec P() or P(-1) if it is made of arrays")
        leaves, structure = jax.tree.flatten(dynamic)
        kinds = tuple((np.shape(leaf), _dtype_of(leaf)) for leaf in leaves)
        if (structure, kinds) not in self.checked:
            self._check_leading_axes(dynamic)
            self.checked.add((structure, kinds))
        if not jit or not is_concrete(dynamic):
            # Without compilation, JAX would compile and run each operation separately, in many times the time.
            return self.compiled(_Static(tuple(static.items()), trace_key()), dynamic)[0]
        kind = tuple(static.items()), kinds
        capacities = self.capacities.setdefault(kind, {})

        def run() -> Any:
            with capacity.learning(capacities):
                key = _Static(tuple(static.items()), trace_key())
            return self._finished(self.compiled(key, dynamic))

        if len(self.processes) > 1:
            check_same(self._in_words(static, dynamic), np.ravel(self.mesh.devices))
        return capacity.retrying(run, capacities, self.name)

    def _in_words(self, static: dict[str, Any], dynamic: dict[str, Any]) -> str:
        """Describe the call that all processes must make: names, static arguments, shapes, and shared values."""

        def leaf_in_words(leaf: Any, spec: P) -> str:
            form = f"{jnp.result_type(leaf)}{list(np.shape(leaf))}"
            is_small = not axes_of(spec) and np.size(leaf) <= _FEW and getattr(leaf, "is_fully_addressable", True)
            return f"{form} {np.asarray(leaf).tolist()}" if is_small else form

        words = [f"{name}={value!r}" for name, value in sorted(static.items()) if value is not None]
        for name in sorted(dynamic):
            leaves, specs = jax.tree.leaves(dynamic[name]), spec_of_each_leaf(self.in_specs[name], dynamic[name])
            if leaves:
                words.append(f"{name}={' '.join(map(leaf_in_words, leaves, specs))}")
        ids = [device.id for device in np.ravel(self.mesh.devices)]
        mesh = ", ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
        order = "" if ids == sorted(ids) else f" in the order {ids}"
        recording = ", with statistics" if stats.recording() else ""
        return f"{self.name}({', '.join(words)}) over the devices {mesh}{order}{recording}"

    def _finished(self, result: tuple[Any, jax.Array]) -> Any:
        """Wait for the results, to detect buffers that were too small."""
        out, done = result
        try:
            _wait_for_devices(done)
        except Exception:
            _forget_failed_callbacks(done.sharding.addressable_devices)
            raise
        # This run succeeded; an error here would belong to another function.
        with contextlib.suppress(Exception):
            jax.effects_barrier()
        return out

    def _run(self, static: _Static, dynamic: dict[str, Any]) -> Any:
        leaves, structure = jax.tree.flatten(dynamic)
        specs = self._leaf_specs(dynamic)
        method = ragged.method_on(self.mesh)

        def local(*blocks: jax.Array) -> Any:
            local_blocks = [self._without_leading_axis(block, spec) for block, spec in zip(blocks, specs, strict=True)]
            with capacity.learning(dict(static.trace[0])), ragged.exchanging(method):
                out = called_by_name(self.f, dict(static.values) | jax.tree.unflatten(structure, local_blocks))
            # An extra output: there may be no other to wait for, and errors surface with outputs.
            done = vary_along(jnp.int32(0), frozenset(self.axes))
            return self._with_leading_axes(out), done[None]

        placed = [self._placed(jnp.asarray(leaf), spec) for leaf, spec in zip(leaves, specs, strict=True)]
        out_specs = jax.tree.map(lambda spec: P() if spec is None else spec, self.out_specs, is_leaf=is_spec)
        out_specs = (out_specs, P(self.axes))
        axis_options = {} if self.options.axis_names is None else {"axis_names": frozenset(self.axes)}
        mapped = jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=tuple(specs),
            out_specs=out_specs,
            check_vma=self.options.check_vma,
            **axis_options,
        )
        return mapped(*placed)

    def _leaf_specs(self, dynamic: dict[str, Any]) -> list[P]:
        """Return the spec of each leaf; a number in an argument that differs between devices is the same for all."""
        specs = [spec for name in sorted(dynamic) for spec in spec_of_each_leaf(self.in_specs[name], dynamic[name])]
        if self.options.input_tiled:
            return specs
        return [P() if np.ndim(leaf) == 0 else spec for leaf, spec in zip(jax.tree.leaves(dynamic), specs, strict=True)]

    def _without_leading_axis(self, block: jax.Array, spec: P) -> jax.Array:
        return block.reshape(block.shape[1:]) if axes_of(spec) and not self.options.input_tiled else block

    def _with_leading_axes(self, out: Any) -> Any:
        leaves, structure = jax.tree.flatten(out)
        specs = spec_of_each_leaf(self.out_specs, out)
        return jax.tree.unflatten(
            structure, [self._output(leaf, spec) for leaf, spec in zip(leaves, specs, strict=True)]
        )

    def _output(self, leaf: Any, spec: P | None) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if not axes_of(spec):
            return leaf
        varying = vary_along(leaf, frozenset(axes_of(spec)))
        return varying if self.options.output_tiled else varying[None]

    def _placed(self, leaf: jax.Array, spec: P) -> jax.Array:
        """Return ``leaf`` with the layout of ``spec``, which meshes with Explicit axes require."""
        if all(kind == AxisType.Auto for kind in self.mesh.axis_types):
            return leaf
        return jax.reshard(leaf, NamedSharding(self.mesh, spec))

    def _check_leading_axes(self, dynamic: dict[str, Any]) -> None:
        if self.options.input_tiled:
            return
        for leaf, spec in zip(jax.tree.leaves(dynamic), self._leaf_specs(dynamic), strict=True):
            ranks = math.prod(self.mesh.shape[axis] for axis in axes_of(spec))
            if axes_of(spec) and np.shape(leaf)[0] != ranks:
                for argument in dynamic.values():
                    if isinstance(argument, Index):
                        check_devices(argument, ranks)
                raise ValueError(
                    f"{self.name}: an array has shape {np.shape(leaf)}, but its leading axis must run over the {ranks} "
                    "devices of the mesh; distribute particles with jztree.data.expand_particles."
                )
