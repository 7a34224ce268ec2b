"""The examples in public docstrings must run and print the output shown, and every compiled function must have one."""

import doctest
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jztree as jz
from project.test_layout import AROUND, SUBJECTS

MODULES = ["jztree", *(f"jztree.{name}" for name in sorted(SUBJECTS)), *(f"jztree_utils.{name}" for name in AROUND)]


def public_objects() -> Iterator[tuple[str, Any]]:
    """Yield the public functions and classes with their names."""
    for name in MODULES:
        if name == "jztree_utils.torch_bridge":  # needs an optional package
            continue
        module = importlib.import_module(name)
        for public in module.__all__:
            value = getattr(module, public)
            if callable(value):
                yield f"{name}.{public}", value


OBJECTS = {id(value): (name, value) for name, value in reversed([*public_objects()])}
TESTS = [
    test
    for name, value in OBJECTS.values()
    for test in doctest.DocTestFinder().find(value, name, module=False, globs={})  # type: ignore[arg-type]
    if test.examples
]


@pytest.mark.fast
@pytest.mark.parametrize("example", TESTS, ids=lambda test: test.name)
def test_example_prints_the_documented_output(example: doctest.DocTest) -> None:
    example.globs.update(jz=jz, np=np, jax=jax, jnp=jnp)
    doctest.DebugRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(example)


def test_every_compiled_function_has_an_example() -> None:
    compiled = {name for name, value in OBJECTS.values() if hasattr(value, "jit")}
    assert "jztree.nearest" in compiled
    assert not compiled - {test.name for test in TESTS}, "add Examples to the docstrings"


def test_types_are_short_in_help() -> None:
    """Python expands aliases such as ArrayLike to kilobytes, unless annotations are text."""
    functions = {name: value for name, value in OBJECTS.values() if not inspect.isclass(value)}
    texts = {name: str(inspect.signature(value)) for name, value in functions.items()}
    assert not {name for name, text in texts.items() if "numpy._typing" in text or len(text) > 1500}
