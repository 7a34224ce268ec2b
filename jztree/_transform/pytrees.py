"""Classes whose objects are pytrees."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

import jax

__all__ = ["pytree"]

_T = TypeVar("_T")


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def pytree(cls: type[_T]) -> type[_T]:
    """Make ``cls`` a dataclass with keyword arguments, and a pytree of its fields."""
    return jax.tree_util.register_dataclass(dataclass(kw_only=True, slots=True)(cls))
