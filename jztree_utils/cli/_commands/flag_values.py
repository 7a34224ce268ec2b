"""Numbers in the flags of the command line.

This module does not import JAX, so ``--help`` is quick.
"""

import argparse
import math
import re


def whole(text: str) -> int:
    """Parse an integer. Raises ArgumentTypeError if the text is not an integer or is too large."""
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number with at most 18 digits")
    return int(text)


def real(text: str) -> float:
    """Parse a number, nan or inf.

    Python itself also accepts digits of all scripts, and underscores between digits.

    Raises:
        ArgumentTypeError: If the text is not a number, or if the number is too large or too small for a float.
    """
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(nan|inf)", text, re.IGNORECASE):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise argparse.ArgumentTypeError(f"{text!r} is too large")
    if value == 0 and re.search("[1-9]", text.lower().partition("e")[0]):
        raise argparse.ArgumentTypeError(f"{text!r} is too small")
    return value


def size(text: str) -> float:
    """Parse a number of bytes with a unit, such as 8GB or 512MiB.

    Raises:
        ArgumentTypeError: If the text is no such number.
    """
    match = re.fullmatch(r"([0-9]+\.?[0-9]*)\s*([kMGT]?)(i?)B", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size with a unit, such as 8GB or 512MiB")
    return float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " ")


def check_not_negative(option: str, value: float | None) -> None:
    """Raise ValueError for a number that is negative or not finite."""
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{option} is {value:g}; it must be finite and at least 0.")


def check_at_least(option: str, value: int, smallest: int) -> None:
    """Raise ValueError for a number that is too small."""
    if value < smallest:
        raise ValueError(f"{option} is {value}; it must be at least {smallest}.")
