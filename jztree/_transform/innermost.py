"""Settings that apply while a function is traced."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Innermost(threading.local, Generic[T]):
    """A setting for the functions that this thread is tracing. If they call each other, the innermost counts."""

    def __init__(self) -> None:
        self._stack: list[T] = []

    def get(self, default: T) -> T:
        """Return the innermost value, or ``default`` if none is set."""
        return self._stack[-1] if self._stack else default

    @contextlib.contextmanager
    def set(self, value: T) -> Iterator[None]:
        """Trace with this value."""
        self._stack.append(value)
        try:
            yield
        finally:
            self._stack.pop()
