"""A case: a call of the library as the Python that makes it, and a judge of what comes out.

What a report prints is what was run: the lines are executed with the values that are printed above them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jztree as jz

# What the library may raise. Everything else that comes out of a call is a fault.
SENTENCES = (ValueError, TypeError, jax.errors.JaxRuntimeError)

_IMPORTS = "import numpy as np, jax, jax.numpy as jnp, jztree as jz"


class WrongError(Exception):
    """The library did something else than its definition says.

    kind: what is wrong, in words that are the same for all cases of one fault.
    """

    def __init__(self, kind: str, expected: Any = "", found: Any = "") -> None:
        super().__init__(kind)
        self.kind, self.expected, self.found = kind, expected, found


@dataclass(frozen=True)
class Outcome:
    """What the lines of a case left: the names they set, or the error that ended them."""

    names: dict[str, Any]
    error: Exception | None = None

    def __getitem__(self, name: str) -> Any:
        return self.names[name]


@dataclass(frozen=True)
class Case:
    """A call and its judge.

    lines: Python that sees ``np``, ``jax``, ``jnp``, ``jz``, what ``setup`` defines, and the values.
    values: numbers and arrays by name, which a report prints as literals.
    judge: takes the values and the `Outcome`; raises `WrongError`.
    rows: arrays that have one row a particle each, under the name of the value that counts the rows in use (it need not
        exist); a failing case is made smaller by taking rows from all of them.
    setup: Python that is the same for many cases, such as a compiled function; it runs once.
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
                made = {name: value for name, value in names.items() if name not in known}
                jax.block_until_ready(made)
            except Exception as error:
                return Outcome({}, error)
        return Outcome(made)

    def check(self) -> WrongError | None:
        """Run and judge; what is wrong, if anything is."""
        outcome = self.run()
        try:
            with jax.enable_x64(self.x64):
                check_error(outcome.error)
                self.judge(self.values, outcome)
        except WrongError as wrong:
            return wrong
        return None

    def script(self) -> str:
        """Python that can be pasted."""
        start = [_IMPORTS, 'jax.config.update("jax_enable_x64", True)'] if self.x64 else [_IMPORTS]
        values = [f"{name} = {literal(value)}" for name, value in self.values.items()]
        setup = [self.setup.strip()] if self.setup else []
        return "\n".join([*start, *setup, *values, self.lines.strip()])


@functools.lru_cache(maxsize=64)
def _defined(setup: str, x64: bool) -> dict[str, Any]:
    """The names that ``setup`` defines, beside those that all cases see."""
    del x64  # compiled functions are of one mode
    names = {"np": np, "jax": jax, "jnp": jnp, "jz": jz, "__name__": "fuzz.made"}
    exec(setup, names)
    return names


def check_error(error: Exception | None) -> None:
    """That an error, if there is one, is of a kind that the library may raise, and one sentence."""
    if error is None:
        return
    text = str(error).strip()
    if not isinstance(error, SENTENCES):
        raise WrongError(f"an error that is no sentence of the library: {type(error).__name__}", "", text)
    if "\n" in text or not text.endswith("."):
        raise WrongError("an error that is not one sentence", "one line that ends with a full stop", text)


def expect_error(outcome: Outcome, reason: str | None, may_refuse: str | None = None) -> bool:
    """Whether there is nothing more to judge, because the call was refused and had to be or may have been.

    reason: why it must be refused; None: it must not. may_refuse: why it may be.
    """
    if reason is not None and outcome.error is None:
        raise WrongError(f"no error although {reason}", "an error", "an answer")
    if reason is None and may_refuse is None and outcome.error is not None:
        kind = "".join(letter for letter in str(outcome.error)[:60] if not letter.isdigit())
        raise WrongError(f"an error for input that is fine: {kind}", "an answer", str(outcome.error))
    return outcome.error is not None


def literal(value: Any) -> str:
    """Python for a value."""
    if isinstance(value, np.ndarray):
        return _array_literal(value)
    if isinstance(value, float) and not np.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def _array_literal(value: np.ndarray) -> str:
    dtype = f"np.{value.dtype.name}" if hasattr(np, value.dtype.name) else f"jnp.{value.dtype.name}"
    if value.size == 0 or (value.size > 1 and value.dtype.kind in "fiu" and _all_equal(value)):
        one = "0" if value.size == 0 else _number(value.flat[0])
        return f"np.full({value.shape}, {one}, {dtype})"
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
