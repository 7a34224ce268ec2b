"""Arguments that are one of a few words."""

from collections.abc import Iterable
from typing import Any


def check_word(value: Any, name: str, words: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``words``. ``name`` names the argument."""
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, words))}.")
