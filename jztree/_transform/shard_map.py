"""Maps over devices: run a function "MPI style", seen from one device of a mesh.

`expanding_shard_map` is `jax.shard_map` for functions whose devices hold separate arrays rather than pieces of one:
what differs between devices has a leading axis over the devices outside, and none inside. `shard_map_constructor`
makes the function that is stored as ``f.smap``. It also enlarges buffers that turn out too small (`.capacity`).

Specs are those of `jax.shard_map`, and two more: ``P(-1)`` means all axes of the mesh, whatever their names, and None
marks an argument that is static, that is, compiled in.
"""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .. import stats
from .._particles import check_carried
from ..config import copy_config, is_config
from ..launch import calling, forget_failed_callbacks, watch_callbacks
from . import capacity, ragged
from .agreement import check_same

_FEW = 64  # numbers that all devices share and that are compared between processes

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)


class Mapper(Protocol[_Args, _Result_co]):
    """What ``f.smap`` is: it maps ``f`` over the devices of a mesh."""

    def __call__(self, mesh: Mesh, jit: bool = False) -> Callable[_Args, _Result_co]:
        """The function mapped over ``mesh``: it runs once a device, on that device's arrays.

        What differs between devices has a leading axis over the devices outside, and none inside.

        mesh: the devices. jit: compile, and wait for the results; needed unless the mapped function is used inside a
            function that is compiled later.
        """
        ...


def varying_axes(*values: Any) -> frozenset[str]:
    """The mesh axes along which any of the arrays differs from device to device; empty outside `jax.shard_map`."""
    return frozenset().union(*(jax.typeof(leaf).manual_axis_type.varying for leaf in jax.tree.leaves(values)))


def vary_along(value: jax.Array, axes: frozenset[str]) -> jax.Array:
    """``value`` with a type that says that it differs along all of ``axes``."""
    missing = tuple(sorted(axes - varying_axes(value)))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def is_concrete(value: Any) -> bool:
    """Whether the numbers in ``value`` are known now, that is, not traced."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value))


def trace_key() -> tuple[Any, ...]:
    """What a traced function depends on besides its arguments; part of the key of everything compiled."""
    return capacity.learnt(), stats.recording()


def copy_configs(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name with configurations copied, so that later edits cannot reach compiled code."""
    return {name: copy_config(value) if is_config(value) else value for name, value in arguments.items()}


def check_hashable(function: str, static: dict[str, Any], advice: str = "") -> None:
    """TypeError in words if a static argument cannot be part of what is compiled. advice: what may be done."""
    for name, value in static.items():
        try:
            hash(value)
        except TypeError:
            raise TypeError(
                f"{function}: argument {name!r} is static (compiled in), so it must be hashable, such as a number or a "
                f"tuple, and {type(value).__name__} is not{advice}."
            ) from None


def _is_spec(value: Any) -> bool:
    return value is None or isinstance(value, P)


def _name_all_axes(specs: Any, mesh: Mesh) -> Any:
    """``specs`` with ``P(-1)`` spelt out for ``mesh``."""
    return jax.tree.map(lambda spec: P(mesh.axis_names) if spec == P(-1) else spec, specs, is_leaf=_is_spec)


def _axes(spec: P | None) -> tuple[str, ...]:
    """The mesh axes that the leading axis is spread over; empty if devices have the same."""
    first = spec[0] if spec else None
    if first is None:
        return ()
    return first if isinstance(first, tuple) else (first,)


def _spec_of_each_leaf(specs: Any, tree: Any) -> list[P]:
    """The spec of every leaf of ``tree``, of which ``specs`` is a prefix."""
    spread = jax.tree.map(lambda spec, part: [spec] * len(jax.tree.leaves(part)), specs, tree, is_leaf=_is_spec)
    return jax.tree.leaves(spread, is_leaf=_is_spec)


@dataclass(frozen=True)
class _Static:
    """The part of a call that is compiled in: arguments by name, and what else a trace depends on."""

    values: tuple[tuple[str, Any], ...]
    trace: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class _Options:
    """How a function is mapped. specs: of arguments by name; None is static."""

    in_specs: dict[str, Any]
    out_specs: Any
    input_tiled: bool
    output_tiled: bool
    check_vma: bool


def _of_one_kind(mesh: Mesh) -> Mesh:
    """``mesh``, or one of the same devices whose axes are all Auto if they are of different kinds.

    Arrays can be laid out by JAX or as they say, but not by both at once.
    """
    if len(set(mesh.axis_types)) == 1:
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


class _Mapped:
    """A function mapped over one mesh. Calls take arguments by name."""

    def __init__(self, f: Callable[..., Any], mesh: Mesh, options: _Options) -> None:
        self.f, self.mesh, self.options = f, _of_one_kind(mesh), options
        self.in_specs = {name: _name_all_axes(spec, mesh) for name, spec in options.in_specs.items()}
        self.out_specs = _name_all_axes(options.out_specs, mesh)
        self.name = getattr(f, "__name__", "a mapped function")
        self.processes = {device.process_index for device in np.ravel(getattr(mesh, "devices", ()))}
        # What earlier runs taught about the sizes of buffers, for each kind of call.
        self.rooms: dict[Any, dict[str, int]] = {}

        def run(static: _Static, dynamic: dict[str, Any]) -> Any:
            return self._run(static, dynamic)

        if mesh.size > 1:
            watch_callbacks()
        run.__name__ = run.__qualname__ = self.name
        self.compiled = jax.jit(run, static_argnums=0)

    def __call__(self, arguments: dict[str, Any], jit: bool) -> Any:
        static = copy_configs({name: value for name, value in arguments.items() if self.in_specs.get(name) is None})
        dynamic = {name: value for name, value in arguments.items() if name not in static}
        if not self.options.input_tiled:
            self._check_leading_axes(dynamic)
        if not jit:
            return self._run(_Static(tuple(static.items()), trace_key()), dynamic)[0]
        check_hashable(self.name, static, "; give it the spec P() or P(-1) if it is made of arrays")
        if not is_concrete(dynamic):
            return self.compiled(_Static(tuple(static.items()), trace_key()), dynamic)[0]
        kinds = tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(dynamic))
        kind = tuple(static.items()), kinds
        rooms = self.rooms.setdefault(kind, {})

        def run() -> Any:
            with capacity.learning(rooms):
                key = _Static(tuple(static.items()), trace_key())
            return self._finished(self.compiled(key, dynamic))

        with calling(self.name, self.processes):
            if len(self.processes) > 1:
                check_same(self._in_words(static, dynamic), np.ravel(self.mesh.devices))
            return capacity.retrying(run, rooms, self.name)

    def _in_words(self, static: dict[str, Any], dynamic: dict[str, Any]) -> str:
        """The call, as all processes must make it: names, static arguments, shapes, and what all devices share."""

        def leaf_in_words(leaf: Any, spec: P) -> str:
            form = f"{jnp.result_type(leaf)}{list(np.shape(leaf))}"
            shared = not _axes(spec) and np.size(leaf) <= _FEW and getattr(leaf, "is_fully_addressable", True)
            return f"{form} {np.asarray(leaf).tolist()}" if shared else form

        given = [f"{name}={value!r}" for name, value in sorted(static.items()) if value is not None]
        for name in sorted(dynamic):
            leaves, specs = jax.tree.leaves(dynamic[name]), _spec_of_each_leaf(self.in_specs[name], dynamic[name])
            if leaves:
                given.append(f"{name}={' '.join(map(leaf_in_words, leaves, specs))}")
        ids = [device.id for device in np.ravel(self.mesh.devices)]
        mesh = ", ".join(f"{axis}={size}" for axis, size in self.mesh.shape.items())
        order = "" if ids == sorted(ids) else f" in the order {ids}"
        recording = ", with statistics" if stats.recording() else ""
        return f"{self.name}({', '.join(given)}) over the devices {mesh}{order}{recording}"

    def _finished(self, result: tuple[Any, jax.Array]) -> Any:
        """Wait for the results, to learn whether all buffers were large enough."""
        out, done = result
        try:
            jax.block_until_ready(done)
        except Exception:
            forget_failed_callbacks()  # or calls after this one would fail for the same reason
            raise
        # This run went well; an error would be that of another function.
        with contextlib.suppress(Exception):
            jax.effects_barrier()
        return out

    def _run(self, static: _Static, dynamic: dict[str, Any]) -> Any:
        leaves, structure = jax.tree.flatten(dynamic)
        specs = self._leaf_specs(dynamic)
        method = ragged.method_on(self.mesh)

        def local(*blocks: jax.Array) -> Any:
            own = [self._without_leading_axis(block, spec) for block, spec in zip(blocks, specs, strict=True)]
            with capacity.learning(dict(static.trace[0])), ragged.exchanging(method):
                out = self.f(**dict(static.values), **jax.tree.unflatten(structure, own))
            # An output of our own: there may be no other to wait for, and errors come out with outputs.
            done = vary_along(jnp.int32(0), frozenset(self.mesh.axis_names))
            return self._with_leading_axes(out), done[None]

        placed = [self._placed(jnp.asarray(leaf), spec) for leaf, spec in zip(leaves, specs, strict=True)]
        out_specs = jax.tree.map(lambda spec: P() if spec is None else spec, self.out_specs, is_leaf=_is_spec)
        out_specs = (out_specs, P(self.mesh.axis_names))
        mapped = jax.shard_map(
            local, mesh=self.mesh, in_specs=tuple(specs), out_specs=out_specs, check_vma=self.options.check_vma
        )
        return mapped(*placed)

    def _leaf_specs(self, dynamic: dict[str, Any]) -> list[P]:
        """The spec of each leaf; a number among what differs between devices is the same for all of them."""
        specs = [spec for name in sorted(dynamic) for spec in _spec_of_each_leaf(self.in_specs[name], dynamic[name])]
        if self.options.input_tiled:
            return specs
        return [P() if np.ndim(leaf) == 0 else spec for leaf, spec in zip(jax.tree.leaves(dynamic), specs, strict=True)]

    def _without_leading_axis(self, block: jax.Array, spec: P) -> jax.Array:
        return block.reshape(block.shape[1:]) if _axes(spec) and not self.options.input_tiled else block

    def _with_leading_axes(self, out: Any) -> Any:
        leaves, structure = jax.tree.flatten(out)
        specs = _spec_of_each_leaf(self.out_specs, out)
        return jax.tree.unflatten(
            structure, [self._output(leaf, spec) for leaf, spec in zip(leaves, specs, strict=True)]
        )

    def _output(self, leaf: Any, spec: P | None) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if not _axes(spec):
            return leaf
        varying = vary_along(leaf, frozenset(_axes(spec)))
        return varying if self.options.output_tiled else varying[None]

    def _placed(self, leaf: jax.Array, spec: P) -> jax.Array:
        """``leaf`` laid out as ``spec`` says, which meshes with Explicit axes want spelt out."""
        if all(kind == AxisType.Auto for kind in self.mesh.axis_types):
            return leaf
        return jax.reshard(leaf, NamedSharding(self.mesh, spec))

    def _check_leading_axes(self, dynamic: dict[str, Any]) -> None:
        for leaf, spec in zip(jax.tree.leaves(dynamic), self._leaf_specs(dynamic), strict=True):
            ranks = math.prod(self.mesh.shape[axis] for axis in _axes(spec))
            if _axes(spec) and np.shape(leaf)[0] != ranks:
                raise ValueError(
                    f"{self.name}: an array has shape {np.shape(leaf)}, but its leading axis must run over the {ranks} "
                    "devices of the mesh; jztree.data.expand_particles deals particles out to devices."
                )


def _specs_by_name(in_specs: Any, names: Sequence[str]) -> dict[str, Any]:
    """The spec of each argument: of a dict by names, of a tuple with one for each of the first ones, or one for all."""
    if isinstance(in_specs, dict) and in_specs.keys() <= set(names):
        return {name: in_specs.get(name) for name in names}
    if _is_spec(in_specs) or not isinstance(in_specs, (tuple, list)):
        return dict.fromkeys(names, in_specs)
    if len(in_specs) > len(names):
        raise ValueError(f"in_specs has {len(in_specs)} entries for {len(names)} arguments ({', '.join(names)}).")
    return dict(zip(names, in_specs, strict=False))


def static_names(f: Callable[..., Any], in_specs: Any) -> list[str]:
    """The arguments of ``f`` that ``in_specs`` marks as static."""
    return [
        name for name, spec in _specs_by_name(in_specs, list(inspect.signature(f).parameters)).items() if spec is None
    ]


def expanding_shard_map(
    f: Callable[_Args, _Result],
    in_specs: Any,
    out_specs: Any,
    mesh: Mesh,
    *,
    input_tiled: bool = False,
    output_tiled: bool = False,
    jit: bool = False,
    check_vma: bool = True,
) -> Callable[_Args, _Result]:
    """`jax.shard_map` for functions whose devices hold separate arrays rather than pieces of one.

    f: sees the arrays of one device.
    in_specs: a `PartitionSpec` for all arguments, or a tuple with one an argument, or a dict by the names of arguments,
        where those that are left out are static. Each may be a pytree of specs. Specs that name axes, and ``P(-1)``,
        which stands for all axes of the mesh, mean that devices differ: the argument's arrays have a leading axis over
        the devices that ``f`` does not see; plain numbers in it are the same for all devices. ``P()`` leaves things as
        they are: all devices have the same. ``None`` marks a static argument.
    out_specs: the same for a pytree of outputs: where devices differ, outputs get a leading axis over the devices,
        scalars too.
    input_tiled, output_tiled: as `jax.shard_map` does it instead: leading axes are cut into pieces, or joined.
    jit: compile. Static arguments must then be hashable.
    check_vma: as in `jax.shard_map`.

    Returns a function that takes the arguments of ``f``. It raises ValueError if a leading axis does not run over the
    devices, and TypeError if an argument has no spec or cannot be hashed although it is static.
    """
    options = _Options(
        in_specs=_specs_by_name(in_specs, list(inspect.signature(f).parameters)),
        out_specs=out_specs,
        input_tiled=input_tiled,
        output_tiled=output_tiled,
        check_vma=check_vma,
    )
    return cast(Callable[_Args, _Result], _by_name(_Mapped(f, mesh, options), jit, None))


def shard_map_constructor(
    f: Callable[_Args, _Result],
    in_specs: Any,
    out_specs: Any,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    *,
    input_tiled: bool = False,
    output_tiled: bool = False,
    check_vma: bool = True,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Mapper[_Args, _Result]:
    """What is stored as ``f.smap``: ``f.smap(mesh, jit=True)(*args, **kwargs)`` maps ``f`` over the devices of a mesh.

    f: a function without ``*args`` and ``**kwargs``, which sees the arrays of one device.
    in_specs, out_specs, input_tiled, output_tiled, check_vma: as in `expanding_shard_map`.
    static_argnums, static_argnames: arguments that are compiled in, besides or instead of those whose spec is None. If
        given, arguments with the spec None that they leave out are traced, the same for all devices.
    prepare: takes the arguments by name and returns those to be replaced before anything else is done with them.

    Mapped functions are kept for each mesh, devices and all. With ``jit=True`` they wait for their results; if a buffer
    of the library turns out too small for what other ranks send, it is enlarged, and the function compiled and run
    again, as a whole: what it prints or writes before that happens again. `jztree.CapacityError` is raised if the size
    of the buffer was given. With ``jit=False`` the mapped function is for use inside a function that is compiled later.
    """
    names = list(inspect.signature(f).parameters)
    nums = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums or ())
    static = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames or ())
    static += tuple(names[i] for i in nums)
    specs = _specs_by_name(in_specs, names)
    if static:
        specs = {name: P() if spec is None else spec for name, spec in specs.items()} | dict.fromkeys(static)
    options = _Options(
        in_specs=specs, out_specs=out_specs, input_tiled=input_tiled, output_tiled=output_tiled, check_vma=check_vma
    )

    @functools.cache
    def mapped(mesh: Mesh) -> _Mapped:
        return _Mapped(f, mesh, options)

    def smap(mesh: Mesh, jit: bool = False) -> Callable[..., Any]:
        return _by_name(mapped(mesh), jit, prepare)

    smap.__doc__ = Mapper.__call__.__doc__
    return cast(Mapper[_Args, _Result], functools.cache(name_twin(smap, f, "smap")))


def name_twin(twin: Callable[..., Any], f: Callable[..., Any], attribute: str) -> Callable[..., Any]:
    """``twin``, with the qualified name ``f.<attribute>``, where it is stored; pickle finds it by that."""
    twin.__module__ = getattr(f, "__module__", twin.__module__)
    twin.__qualname__ = f"{getattr(f, '__qualname__', 'function')}.{attribute}"
    return twin


def _by_name(
    mapped: _Mapped, jit: bool, prepare: Callable[[dict[str, Any]], dict[str, Any]] | None
) -> Callable[..., Any]:
    """The function that users call: it finds out which argument is which."""
    signature = inspect.signature(mapped.f)

    @functools.wraps(mapped.f)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name in bound.arguments:
            if name not in mapped.in_specs:
                raise TypeError(f"{mapped.name}: argument {name!r} has no entry in in_specs, so it cannot be given.")
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        if prepare is not None:
            arguments |= prepare(arguments)
        check_carried({name: value for name, value in arguments.items() if mapped.in_specs.get(name) is not None})
        return mapped(arguments, jit)

    return call
