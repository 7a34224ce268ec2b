"""Map functions over devices: run a function "MPI style", from the viewpoint of one device of a mesh.

`expanding_shard_map` is `jax.shard_map` for functions whose devices hold separate arrays instead of pieces of one. An
array that differs between devices has a leading device axis outside the function, and none inside.
`shard_map_constructor` makes the function stored as ``f.smap``.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ..particles import check_representable, check_width, import_arrays
from .shard_map import Mapped, Options
from .specs import argument_reader, names_of, specs_by_name, takes_any

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)


class Mapper(Protocol[_Args, _Result_co]):
    """The type of ``f.smap``, which maps ``f`` over the devices of a mesh."""

    def __call__(self, mesh: Mesh | None = None, jit: bool = False) -> Callable[_Args, _Result_co]:
        """Return the function mapped over ``mesh``: it runs once per device, on that device's arrays.

        Arrays that differ between devices have a leading device axis outside the function, and none inside.

        Args:
            mesh: The devices. For None, see `shard_map_constructor`.
            jit: Whether to wait for the results, and to enlarge receive buffers that are too small. Leave it out for a
                function that is called inside another compiled function.

        Returns:
            A function with the same arguments.
        """
        ...


def _mesh_of_context() -> Any:
    """Return the mesh of the context (`jax.set_mesh`), or, without a context, a mesh with every device."""
    abstract = jax.sharding.get_abstract_mesh()
    if abstract.empty:
        return Mesh(np.asarray(jax.devices()), ("ranks",))
    try:
        return jax.sharding.get_mesh()
    except ValueError:  # a function being compiled does not know the devices
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
    """Map a function over devices that hold separate arrays, unlike `jax.shard_map`, which divides one array.

    Args:
        f: A function of the arrays of one device.
        out_specs: A `PartitionSpec` for all outputs, or a pytree of specs. If a spec names axes, or is ``P(-1)`` (all
            axes of the mesh), devices differ: outputs get a leading device axis, including scalars. ``P()`` leaves
            outputs unchanged: all devices have the same. None is for a function that returns nothing.
        in_specs: The same for all arguments, or a tuple with one entry per argument, or a dict by argument name, in
            which omitted arguments are static. Each may be a pytree of specs. If devices differ, the argument's arrays
            have a leading device axis, which ``f`` does not see; plain numbers in the argument are the same for all
            devices. ``None`` marks a static argument.
        mesh: The devices. None means the mesh of the context at the call (`jax.set_mesh`) or, without a context, all
            devices.
        axis_names: The axes of the mesh to map over, see `jax.shard_map`. None means all. Specs may name only these.
        check_vma: See `jax.shard_map`.
        input_tiled: Whether to divide leading axes of arguments into pieces, like `jax.shard_map`.
        output_tiled: Whether to join leading axes of outputs, like `jax.shard_map`.
        jit: Whether to wait for the results, and to enlarge receive buffers that are too small. Static arguments must
            then be hashable. Without it, the mapped function is compiled too, except with unhashable static arguments.

    Returns:
        A function that takes the arguments of ``f``. It raises ValueError if the length of a leading axis is not the
        number of devices, and TypeError if an argument has no spec or if a static argument cannot be hashed.
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
    """Create the function stored as ``f.smap``: ``f.smap(mesh, jit=True)(*args, **kwargs)`` maps ``f`` over a mesh.

    The mapped functions of each mesh are cached, together with its devices.

    With ``jit=True`` they wait for their results. If a receive buffer of the library turns out too small, jztree
    enlarges it, and compiles and runs the whole function again. Anything that the function printed or wrote before is
    then printed or written again. If the user fixed the size of the buffer, the call raises `jztree.CapacityError`.

    With ``jit=False`` the mapped function is for use inside a function that is compiled later. Elsewhere it is compiled
    too. With unhashable static arguments, JAX compiles and runs each operation separately, which takes minutes.

    Args:
        f: A function of the arrays of one device. In a tuple of specs, the specs of ``*args`` and ``**kwargs`` are
            last; in a dict, ``*args`` share the name of that parameter, and ``**kwargs`` have their own names.
        out_specs: See `expanding_shard_map`.
        in_specs: See `expanding_shard_map`.
        default_mesh: The mesh of ``f.smap()``. None means the mesh of the context or, without a context, all devices.
        axis_names: See `expanding_shard_map`.
        check_vma: See `expanding_shard_map`.
        input_tiled: See `expanding_shard_map`.
        output_tiled: See `expanding_shard_map`.
        prepare: A function of the arguments by name. It returns replacements, which are applied first.
        jit_kwargs: ``static_argnums`` and ``static_argnames`` name static arguments, in addition to or instead of the
            arguments with spec None. If they are passed, an argument with spec None that they do not list is traced,
            with the same value on all devices. Of the other options of `jax.jit`, ``compiler_options``, ``inline`` and
            ``keep_unused`` are passed on. ``donate_argnums`` and ``donate_argnames`` do nothing, because a call may
            have to run again.

    Returns:
        The function to store as ``f.smap``.
    """
    if not takes_any(f):
        specs_by_name(in_specs, names_of(f))  # raises early, when the function is created
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


def _jit_options(options: dict[str, Any]) -> dict[str, Any]:
    """Convert options of `jax.jit` to fields of `Options`. Raise TypeError for unknown options."""
    nums, names = options.get("static_argnums"), options.get("static_argnames")
    option_names = {"static_argnums", "static_argnames", "donate_argnums", "donate_argnames"}
    handed_on = {"compiler_options", "inline", "keep_unused"}
    for option in options.keys() - option_names - handed_on:
        raise TypeError(f"{option} is not a valid option; options are {', '.join(sorted(option_names | handed_on))}.")
    return {
        "static_argnums": (nums,) if isinstance(nums, int) else tuple(nums or ()),
        "static_argnames": (names,) if isinstance(names, str) else tuple(names or ()),
        "jit_options": {name: options[name] for name in handed_on & options.keys()},
    }


class _Mappings:
    """Cached mappings of a function, by mesh and, if it has ``*args`` or ``**kwargs``, by kind of call."""

    def __init__(self, f: Callable[..., Any], options: Options) -> None:
        self.f, self.options, self.any_names = f, options, takes_any(f)
        self.made: dict[Any, Mapped] = {}

    def over(self, mesh: Mesh, names: tuple[str, ...]) -> "Mapped":
        key = mesh, names if self.any_names else None
        if key not in self.made:
            self.made[key] = Mapped(self.f, mesh, self.options, self._specs(names))
        return self.made[key]

    def _specs(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the spec of each argument; None means static."""
        given = names if self.any_names else names_of(self.f)
        specs = specs_by_name(self.options.in_specs, given, self.any_names)
        static = (*self.options.static_argnames, *(given[i] for i in self.options.static_argnums if i < len(given)))
        if not static:
            return specs
        return {name: P() if spec is None else spec for name, spec in specs.items()} | dict.fromkeys(static)


def name_twin(twin: Callable[..., Any], f: Callable[..., Any], attribute: str) -> Callable[..., Any]:
    """Set the qualified name of ``twin`` to ``f.<attribute>``, where pickle finds it."""
    twin.__module__ = getattr(f, "__module__", twin.__module__)
    twin.__qualname__ = f"{getattr(f, '__qualname__', 'function')}.{attribute}"
    return twin


def _by_name(
    mappings: _Mappings, mesh: Mesh | None, jit: bool, prepare: Callable[[dict[str, Any]], dict[str, Any]] | None
) -> Callable[..., Any]:
    """Return the function that users call; it names the arguments.

    If ``mesh`` is None, the function uses the mesh of the context.
    """
    read = argument_reader(inspect.signature(mappings.f))

    @functools.wraps(mappings.f)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments, present = read(args, kwargs)
        arguments = import_arrays(arguments)
        check_width(arguments, jax.core.Tracer)
        mapped = mappings.over(mesh or _mesh_of_context(), tuple(arguments))
        for name in present:
            if name not in mapped.in_specs:
                raise TypeError(f"{mapped.name}: argument {name!r} has no entry in in_specs; add one, or omit it.")
        if prepare is not None:
            arguments |= prepare(arguments)
        check_representable({name: value for name, value in arguments.items() if mapped.in_specs.get(name) is not None})
        return mapped(arguments, jit)

    return call
