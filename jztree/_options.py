"""Classes of options: hashable dataclasses that accept the options of the published interface.

The published interface has options that only set the size of its buffers (``alloc_fac_nodes``, ``alloc_fac_ilist``,
...) or the shape of its hierarchy. This library chooses the size of its buffers, and has another hierarchy. You can
therefore set, read and change these options, but they have no effect. `published` makes them, and they are not part of
the compiled code. Any other option whose name starts with ``alloc_fac_`` is also accepted and discarded.

Published scripts edit configurations after they made them, so the classes are mutable. A public function copies the
configuration that it receives; later edits of the object do not affect compiled code.
"""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

import numpy as np

__all__ = ["at_least", "checked_config", "copy_config", "is_config", "options", "published"]

_IGNORED = "alloc_fac_"

_T = TypeVar("_T")
_kinds: list[type] = []


@dataclass_transform(kw_only_default=True)
def options(cls: type[_T]) -> type[_T]:
    """Make ``cls`` a hashable dataclass that rejects unknown options and ignores options that size allocations."""
    options_class = dataclass(kw_only=True, unsafe_hash=True)(cls)
    fields = [option.name for option in dataclasses.fields(options_class)]  # type: ignore[arg-type]
    properties = [name for name, value in vars(cls).items() if isinstance(value, property)]
    aliases = getattr(cls, "_aliases", ())
    names = fields + properties
    init = options_class.__init__

    @functools.wraps(init)
    def filtered_init(self: Any, **values: Any) -> None:
        for name in values:
            _check_name(options_class, names, name, TypeError)
        for alias, name in aliases:
            if alias in values and name in values:
                raise ValueError(
                    f"{cls.__name__} got both {alias} and {name}, but one determines the other; pass only one."
                )
        init(self, **{name: value for name, value in values.items() if name in fields})
        for name in properties:
            if name in values:
                setattr(self, name, values[name])

    def checked_setattr(self: Any, name: str, value: Any) -> None:
        _check_name(options_class, names, name)
        _check_value(options_class, name, value)
        if name in names:
            object.__setattr__(self, name, int(value) if isinstance(value, np.integer) else value)

    options_class.__init__ = filtered_init  # type: ignore[method-assign]
    options_class.__setattr__ = checked_setattr  # type: ignore[method-assign]
    _kinds.append(options_class)
    return options_class


def is_config(value: Any) -> bool:
    """Return whether ``value`` is a configuration."""
    return isinstance(value, tuple(_kinds))


def checked_config(cfg: Any, kind: type[_T], what: str = "cfg", *, optional: bool = True) -> _T:
    """Return the configuration passed as ``what``, or one with all defaults if it is None.

    Raises:
        TypeError: If it is not a ``kind``.
    """
    if cfg is None and optional:
        return kind()
    if not isinstance(cfg, kind):
        name = kind.__name__
        raise TypeError(f"{what} must be a jztree.config.{name}, such as {name}(), not {type(cfg).__name__}.")
    return cfg


def _check_name(cls: type, names: list[str], name: str, error: type[Exception] = AttributeError) -> None:
    if name not in names and not name.startswith(_IGNORED):
        fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
        own_names = [option for option in names if not (option in fields and fields[option].metadata.get("published"))]
        hint = "" if len(own_names) == len(names) else ". It also accepts the options of the published interface"
        raise error(f"{cls.__name__} has no option {name!r}; its options are {', '.join(own_names)}{hint}.")


def published(default: Any) -> Any:
    """Make a dataclass field of the published interface that has no effect here."""
    return field(default=default, compare=False, repr=False, metadata={"published": True})


def at_least(least: int, default: int | None) -> Any:
    """Make a dataclass field for an integer of at least ``least``, or None if that is the default."""
    return field(default=default, metadata={"least": least})


def _check_value(cls: Any, name: str, value: Any) -> None:
    """Check the value of an option.

    Raises:
        ValueError: If ``value`` violates the bound that `at_least` set for the option.
        TypeError: If it is a configuration of another class than the default.
    """
    option = cls.__dataclass_fields__.get(name)
    kind = None if option is None else option.metadata.get("kind", option.default_factory)
    if kind in _kinds:
        checked_config(value, kind, f"{cls.__name__}.{name}", optional=False)
    minimum = None if option is None else option.metadata.get("least")
    if option is not None and option.metadata.get("names"):
        _check_names(f"{cls.__name__}.{name}", value)
    if value is None and option is not None and option.default is None:
        return
    if minimum is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum):
        raise ValueError(f"{cls.__name__}.{name} must be an integer of at least {minimum}, not {value!r}.")


def _check_names(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(word, str) for word in value):
        raise TypeError(f'{name} must be a tuple of names, such as ("temperature",), not {value!r}.')


def copy_config(cfg: _T) -> _T:
    """Return a deep copy of a configuration, so that later edits of the original do not affect compiled code."""
    values = {option.name: getattr(cfg, option.name) for option in dataclasses.fields(cfg)}  # type: ignore[arg-type]
    return type(cfg)(**{k: copy_config(v) if is_config(v) else v for k, v in values.items()})
