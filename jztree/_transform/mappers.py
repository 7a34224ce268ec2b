"""Maps over devices: run a function "MPI style", seen from one device of a mesh.

`expanding_shard_map` is `jax.shard_map` for functions whose devices hold separate arrays rather than pieces of one:
what differs between devices has a leading axis over the devices outside, and none inside. `shard_map_constructor`
makes the function that is stored as ``f.smap``.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from .._foreign import adopted
from .._particles import check_carried, check_width
from .shard_map import Mapped, Options
from .specs import argument_reader, names_of, specs_by_name, takes_any

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)


class Mapper(Protocol[_Args, _Result_co]):
    """What ``f.smap`` is: it maps ``f`` over the devices of a mesh."""

    def __call__(self, mesh: Mesh | None = None, jit: bool = False) -> Callable[_Args, _Result_co]:
        """The function mapped over ``mesh``: it runs once a device, on that device's arrays.

        What differs between devices has a leading axis over the devices outside, and none inside.

        mesh: the devices; None is a default, see `shard_map_constructor`. jit: compile, and wait for the results;
            needed unless the mapped function is used inside a function that is compiled later.
        """
        ...


def _mesh_of_context() -> Any:
    """The mesh of the context (`jax.set_mesh`), or one of all devices if there is none."""
    abstract = jax.sharding.get_abstract_mesh()
    if abstract.empty:
        return Mesh(np.asarray(jax.devices()), ("ranks",))
    try:
        return jax.sharding.get_mesh()
    except ValueError:  # devices are not known to functions that are compiled
        return abstract


def expanding_shard_map(
    f: Callable[_Args, _Result],
    *,
    out_specs: Any = None,
    in_specs: Any = None,
    mesh: Mesh | None = None,
    axis_names: Any = None,
    check_vma: bool = True,
    input_tiled: bool = False,
    output_tiled: bool = False,
    jit: bool = False,
) -> Callable[_Args, _Result]:
    """`jax.shard_map` for functions whose devices hold separate arrays rather than pieces of one.

    f: sees the arrays of one device.
    out_specs: a `PartitionSpec` for all outputs, or a pytree of them. Specs that name axes, and ``P(-1)``, which stands
        for all axes of the mesh, mean that devices differ: outputs get a leading axis over the devices, scalars too.
        ``P()`` leaves things as they are: all devices have the same. None is for a function that returns nothing.
    in_specs: the same for all arguments, or a tuple with one an argument, or a dict by the names of arguments, where
        those that are left out are static. Each may be a pytree of specs. Where devices differ, the argument's arrays
        have a leading axis over the devices that ``f`` does not see; plain numbers in it are the same for all devices.
        ``None`` marks a static argument.
    mesh: the devices; None is the mesh of the context at the call (`jax.set_mesh`), and all devices where there is
        none.
    axis_names: the axes of the mesh to map over, as in `jax.shard_map`; None is all of them. Only these may be named.
    check_vma: as in `jax.shard_map`.
    input_tiled, output_tiled: as `jax.shard_map` does it instead: leading axes are cut into pieces, or joined.
    jit: compile. Static arguments must then be hashable.

    Returns a function that takes the arguments of ``f``. It raises ValueError if a leading axis does not run over the
    devices, and TypeError if an argument has no spec or cannot be hashed although it is static.
    """
    options = Options(
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=_axis_names(axis_names),
        input_tiled=input_tiled,
        output_tiled=output_tiled,
        check_vma=check_vma,
    )
    mapped = _Mappings(f, options)
    return cast(Callable[_Args, _Result], _by_name(mapped, mesh, jit, None))


def _axis_names(names: Any) -> tuple[str, ...] | None:
    if names is None:
        return None
    return (names,) if isinstance(names, str) else tuple(names)


def shard_map_constructor(
    f: Callable[_Args, _Result],
    out_specs: Any = None,
    in_specs: Any = None,
    default_mesh: Mesh | None = None,
    axis_names: Any = None,
    check_vma: bool = True,
    input_tiled: bool = False,
    output_tiled: bool = False,
    *,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    **jit_kwargs: Any,
) -> Mapper[_Args, _Result]:
    """What is stored as ``f.smap``: ``f.smap(mesh, jit=True)(*args, **kwargs)`` maps ``f`` over the devices of a mesh.

    f: a function that sees the arrays of one device. What it takes as ``*args`` and ``**kwargs`` has the specs that
        follow those of its other arguments in a tuple, or those of their names in a dict.
    out_specs, in_specs, axis_names, check_vma, input_tiled, output_tiled: as in `expanding_shard_map`.
    default_mesh: the mesh of ``f.smap()``; None is that of the context, and all devices where there is none.
    prepare: takes the arguments by name and returns those to be replaced before anything else is done with them.
    jit_kwargs: ``static_argnums``, ``static_argnames``: arguments that are compiled in, besides or instead of those
        whose spec is None. If given, arguments with the spec None that they leave out are traced, the same for all
        devices. Of the other options of `jax.jit`, ``compiler_options``, ``inline`` and ``keep_unused`` are handed on;
        ``donate_argnums`` and ``donate_argnames`` do nothing, because a call may have to be run again.

    Mapped functions are kept for each mesh, devices and all. With ``jit=True`` they wait for their results; if a buffer
    of the library turns out too small for what other ranks send, it is enlarged, and the function compiled and run
    again, as a whole: what it prints or writes before that happens again. `jztree.CapacityError` is raised if the size
    of the buffer was given. With ``jit=False`` the mapped function is for use inside a function that is compiled later.
    """
    if not takes_any(f):
        specs_by_name(in_specs, names_of(f))  # or an error, where the function is made
    options = Options(
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=_axis_names(axis_names),
        input_tiled=input_tiled,
        output_tiled=output_tiled,
        check_vma=check_vma,
        **_jit_options(jit_kwargs),
    )
    mapped = _Mappings(f, options)

    @functools.cache
    def over(mesh: Mesh, jit: bool) -> Callable[..., Any]:
        return _by_name(mapped, mesh, jit, prepare)

    def smap(mesh: Mesh | None = None, jit: bool = False) -> Callable[..., Any]:
        return over(mesh or default_mesh or _mesh_of_context(), jit)

    smap.__doc__ = Mapper.__call__.__doc__
    return cast(Mapper[_Args, _Result], name_twin(smap, f, "smap"))


def _jit_options(given: dict[str, Any]) -> dict[str, Any]:
    """What `Options` makes of options of `jax.jit`; TypeError in words for those that it does not know."""
    nums, names = given.get("static_argnums"), given.get("static_argnames")
    known = {"static_argnums", "static_argnames", "donate_argnums", "donate_argnames"}
    handed_on = {"compiler_options", "inline", "keep_unused"}
    for option in given.keys() - known - handed_on:
        raise TypeError(f"{option} is no option here; there are {', '.join(sorted(known | handed_on))}.")
    return {
        "static_argnums": (nums,) if isinstance(nums, int) else tuple(nums or ()),
        "static_argnames": (names,) if isinstance(names, str) else tuple(names or ()),
        "jit_options": {name: given[name] for name in handed_on & given.keys()},
    }


class _Mappings:
    """A function mapped over meshes, for each of them and, if it has ``*args`` or ``**kwargs``, each kind of call."""

    def __init__(self, f: Callable[..., Any], options: Options) -> None:
        self.f, self.options, self.any_names = f, options, takes_any(f)
        self.made: dict[Any, Mapped] = {}

    def over(self, mesh: Mesh, names: tuple[str, ...]) -> "Mapped":
        key = mesh, names if self.any_names else None
        if key not in self.made:
            self.made[key] = Mapped(self.f, mesh, self.options, self._specs(names))
        return self.made[key]

    def _specs(self, names: tuple[str, ...]) -> dict[str, Any]:
        """The spec of each argument; None is static."""
        given = names if self.any_names else names_of(self.f)
        specs = specs_by_name(self.options.in_specs, given, self.any_names)
        static = (*self.options.static_argnames, *(given[i] for i in self.options.static_argnums if i < len(given)))
        if not static:
            return specs
        return {name: P() if spec is None else spec for name, spec in specs.items()} | dict.fromkeys(static)


def name_twin(twin: Callable[..., Any], f: Callable[..., Any], attribute: str) -> Callable[..., Any]:
    """``twin``, with the qualified name ``f.<attribute>``, where it is stored; pickle finds it by that."""
    twin.__module__ = getattr(f, "__module__", twin.__module__)
    twin.__qualname__ = f"{getattr(f, '__qualname__', 'function')}.{attribute}"
    return twin


def _by_name(
    mappings: _Mappings, mesh: Mesh | None, jit: bool, prepare: Callable[[dict[str, Any]], dict[str, Any]] | None
) -> Callable[..., Any]:
    """The function that users call: it finds out which argument is which. mesh: None is that of the context."""
    read = argument_reader(inspect.signature(mappings.f))

    @functools.wraps(mappings.f)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments, given = read(args, kwargs)
        arguments = adopted(arguments)
        check_width(arguments, jax.core.Tracer)
        mapped = mappings.over(mesh or _mesh_of_context(), tuple(arguments))
        for name in given:
            if name not in mapped.in_specs:
                raise TypeError(f"{mapped.name}: argument {name!r} has no entry in in_specs, so it cannot be given.")
        if prepare is not None:
            arguments |= prepare(arguments)
        check_carried({name: value for name, value in arguments.items() if mapped.in_specs.get(name) is not None})
        return mapped(arguments, jit)

    return call
