"""Specs of arguments and of leaves, and arguments of a call by name, including ``*args`` and ``**kwargs``."""

import functools
import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

ArgumentReader = Callable[[Sequence[Any], dict[str, Any]], tuple[dict[str, Any], list[str]]]

_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def is_spec(value: Any) -> bool:
    """Return whether this is a spec, and not a tree of specs."""
    return value is None or isinstance(value, P)


def name_all_axes(specs: Any, axes: tuple[str, ...]) -> Any:
    """Replace ``P(-1)`` in ``specs`` by the axes of a mesh, or by its mapped axes."""
    return jax.tree.map(lambda spec: P(axes) if spec == P(-1) else spec, specs, is_leaf=is_spec)


def axes_of(spec: P | None) -> tuple[str, ...]:
    """Return the mesh axes that distribute the leading axis; empty if devices have the same."""
    first = spec[0] if spec else None
    if first is None:
        return ()
    return first if isinstance(first, tuple) else (first,)


def spec_of_each_leaf(specs: Any, tree: Any) -> list[P]:
    """Return the spec of every leaf of ``tree``; ``specs`` is a prefix of ``tree``."""
    spread = jax.tree.map(lambda spec, part: [spec] * len(jax.tree.leaves(part)), specs, tree, is_leaf=is_spec)
    return jax.tree.leaves(spread, is_leaf=is_spec)


def names_of(f: Callable[..., Any]) -> list[str]:
    """Return the named arguments of a function."""
    return [name for name, parameter in inspect.signature(f).parameters.items() if parameter.kind in _NAMED]


def takes_any(f: Callable[..., Any]) -> bool:
    """Return whether a function has ``*args`` or ``**kwargs``."""
    return len(names_of(f)) < len(inspect.signature(f).parameters)


def argument_reader(signature: inspect.Signature) -> ArgumentReader:
    """Return a function that returns all arguments of a call by name, in the order of ``signature``.

    That function also returns the names of the passed arguments. Omitted arguments have their defaults. Arguments in
    ``*args`` get the names ``args[0]`` and so on, and ``**kwargs`` keep their names.

    `inspect.Signature.bind` takes a tenth of the time of a search among 300 particles. So it is used only for rare
    cases: positional-only arguments, variable numbers of arguments, and invalid calls, which it reports.
    """
    parameters = signature.parameters.values()
    if any(parameter.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY) for parameter in parameters):
        return functools.partial(_bound, signature)
    missing = object()
    defaults = {
        parameter.name: missing if parameter.default is parameter.empty else parameter.default
        for parameter in parameters
    }
    by_place = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]

    def read(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        by_name = dict(zip(by_place, args, strict=False)) | kwargs
        arguments = defaults | by_name
        wrong = len(by_name) < len(args) + len(kwargs) or len(arguments) > len(defaults)
        if wrong or any(value is missing for value in arguments.values()):
            return _bound(signature, args, kwargs)  # raises Python's usual error
        return arguments, list(by_name)

    return read


def _bound(
    signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    bound = signature.bind(*args, **kwargs)
    by_name = _spread(signature, bound.arguments)
    bound.apply_defaults()
    return _spread(signature, bound.arguments), list(by_name)


def _spread(signature: inspect.Signature, arguments: dict[str, Any]) -> dict[str, Any]:
    spread: dict[str, Any] = {}
    for name, value in arguments.items():
        kind = signature.parameters[name].kind
        if kind == Parameter.VAR_POSITIONAL:
            spread |= {f"{name}[{i}]": item for i, item in enumerate(value)}
        elif kind == Parameter.VAR_KEYWORD:
            spread |= value
        else:
            spread[name] = value
    return spread


def called_by_name(f: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call ``f`` with arguments that have the names of `argument_reader`."""
    remaining, positional = dict(arguments), []
    for name, parameter in inspect.signature(f).parameters.items():
        if parameter.kind == Parameter.VAR_POSITIONAL:
            several = [key for key in remaining if key.startswith(f"{name}[")]
            positional += [remaining.pop(f"{name}[{i}]") for i in range(len(several))]
        elif parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            positional.append(remaining.pop(name))
    return f(*positional, **remaining)


def specs_by_name(in_specs: Any, names: Sequence[str], any_names: bool = False) -> dict[str, Any]:
    """Return the spec of each argument.

    Args:
        in_specs: A dict by name, a tuple for the first arguments, or one spec for all.
        names: Names of the arguments.
        any_names: Whether a dict may name arguments that are absent from this call, and all of ``*args`` by one name.
    """
    if isinstance(in_specs, dict) and (any_names or in_specs.keys() <= set(names)):
        return {name: in_specs.get(name, in_specs.get(name.partition("[")[0])) for name in names}
    if is_spec(in_specs) or not isinstance(in_specs, (tuple, list)):
        return dict.fromkeys(names, in_specs)
    if len(in_specs) > len(names):
        raise ValueError(f"in_specs has {len(in_specs)} entries for {len(names)} arguments ({', '.join(names)}).")
    return dict(zip(names, in_specs, strict=False))


def static_names(f: Callable[..., Any], in_specs: Any) -> list[str]:
    """Return the arguments of ``f`` that ``in_specs`` marks as static."""
    return [name for name, spec in specs_by_name(in_specs, names_of(f)).items() if spec is None]
