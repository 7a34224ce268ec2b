"""Arguments that are one of a few words, or True or False."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from ._numbers import shown


def check_word(value: Any, name: str, words: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``words``. ``name`` names the argument."""
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} is {shown(repr(value))}; it must be one of {', '.join(map(repr, words))}.")


def check_flag(value: Any, name: str) -> None:
    """Raise TypeError unless ``value`` is True or False. ``name`` names the argument."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, known when the function is traced, not {shown(repr(value))}.")
