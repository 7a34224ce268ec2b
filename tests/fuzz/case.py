"""A case: a library call as Python text, and a judge of its result.

Reports print exactly what was run: the lines are executed with the values printed above them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jztree as jz

# The exceptions that the library may raise. Any other exception is a fault.
SENTENCES = (ValueError, TypeError, jax.errors.JaxRuntimeError)

_IMPORTS = "import numpy as np, jax, jax.numpy as jnp, jztree as jz"


class WrongError(Exception):
    """The library deviated from its definition.

    kind: a description of the fault that is the same for all of its cases.
    """

    def __init__(self, kind: str, expected: Any = "", result: Any = "") -> None:
        super().__init__(kind)
        self.kind, self.expected, self.found = kind, expected, result


@dataclass(frozen=True)
class Outcome:
    """The result of the lines of a case: the names they set, or the error that ended them."""

    names: dict[str, Any]
    error: Exception | None = None

    def __getitem__(self, name: str) -> Any:
        return self.names[name]


@dataclass(frozen=True)
class Case:
    """A call and its judge.

    lines: Python text that uses ``np``, ``jax``, ``jnp``, ``jz``, the names defined by ``setup``, and the values.
    values: numbers and arrays by name, which a report prints as literals.
    judge: a function of the values and the `Outcome` that raises `WrongError`.
    rows: arrays with one row per particle, under the name of the value that holds the number of rows in use (which may
        be absent). A failing case is made smaller by removing rows from all of them.
    setup: Python text shared by many cases, such as a compiled function; it runs once.
    """

    lines: str
    values: dict[str, Any]
    judge: Callable[[dict[str, Any], Outcome], None]
    rows: dict[str, tuple[str, ...]] = field(default_factory=dict)
    setup: str = ""
    x64: bool = False

    def run(self) -> Outcome:
        """Execute the lines."""
        with jax.enable_x64(self.x64):
            try:
                names = dict(_defined(self.setup, self.x64))
                known = set(names)
                copies = {
                    name: value.copy() if isinstance(value, np.ndarray) else value
                    for name, value in self.values.items()
                }
                names.update(copies)
                exec(self.lines, names)
                built = {name: value for name, value in names.items() if name not in known}
                jax.block_until_ready(built)
            except Exception as error:
                return Outcome({}, error)
        return Outcome(built)

    def check(self) -> WrongError | None:
        """Run and judge the case. Return the error, if any."""
        outcome = self.run()
        try:
            with jax.enable_x64(self.x64):
                check_error(outcome.error)
                self.judge(self.values, outcome)
        except WrongError as wrong:
            return wrong
        return None

    def script(self) -> str:
        """Return Python text to paste."""
        start = [_IMPORTS, 'jax.config.update("jax_enable_x64", True)'] if self.x64 else [_IMPORTS]
        values = [f"{name} = {literal(value)}" for name, value in self.values.items()]
        setup = [self.setup.strip()] if self.setup else []
        return "\n".join([*start, *setup, *values, self.lines.strip()])


@functools.lru_cache(maxsize=64)
def _defined(setup: str, x64: bool) -> dict[str, Any]:
    """Return the names that ``setup`` defines, and those available to all cases."""
    del x64  # only a cache key: compiled functions depend on the mode
    names = {"np": np, "jax": jax, "jnp": jnp, "jz": jz, "__name__": "fuzz.made"}
    exec(setup, names)
    return names


def check_error(error: Exception | None) -> None:
    """Check that an error, if any, is of a kind that the library may raise, with a message of one sentence."""
    if error is None:
        return
    text = str(error).strip()
    if not isinstance(error, SENTENCES):
        raise WrongError(f"an error that is no sentence of the library: {type(error).__name__}", "", text)
    if "\n" in text or not text.endswith("."):
        raise WrongError("an error that is not one sentence", "one line that ends with a full stop", text)


def expect_error(outcome: Outcome, reason: str | None, may_refuse: str | None = None) -> bool:
    """Return whether the call was refused, validly, so that there is nothing more to judge.

    reason: why it must be refused; None if it must not. may_refuse: why it may be refused.
    """
    if reason is not None and outcome.error is None:
        raise WrongError(f"no error although {reason}", "an error", "an answer")
    if reason is None and may_refuse is None and outcome.error is not None:
        kind = "".join(letter for letter in str(outcome.error)[:60] if not letter.isdigit())
        raise WrongError(f"an error for input that is fine: {kind}", "an answer", str(outcome.error))
    return outcome.error is not None


def literal(value: Any) -> str:
    """Return Python text for a value."""
    if isinstance(value, np.ndarray):
        return _array_literal(value)
    if isinstance(value, float) and not np.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def _array_literal(value: np.ndarray) -> str:
    dtype = f"np.{value.dtype.name}" if hasattr(np, value.dtype.name) else f"jnp.{value.dtype.name}"
    if value.size == 0 or (value.size > 1 and value.dtype.kind in "fiu" and _all_equal(value)):
        single = "0" if value.size == 0 else _number(value.flat[0])
        return f"np.full({value.shape}, {single}, {dtype})"
    return f"np.array({_nested(value)}, {dtype})"


def _all_equal(value: np.ndarray) -> bool:
    return bool((value == value.flat[0]).all() and (np.signbit(value) == np.signbit(value.flat[0])).all())


def _nested(value: Any) -> str:
    if np.ndim(value) == 0:
        return _number(value)
    return "[" + ", ".join(_nested(item) for item in value) + "]"


def _number(value: Any) -> str:
    if value.dtype.kind in "iub":
        return str(value)
    return str(value) if np.isfinite(value) else f"np.{abs(value)!s}" if not value < 0 else "-np.inf"
