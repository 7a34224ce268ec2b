"""Check linking lengths."""

from typing import Any

import numpy as np

from .. import kernels
from ..jax_ext import Exact, exact, is_concrete
from ._numbers import check_range, check_real, shape_of


def check_length(length: Any, box: Exact, name: str) -> Exact:
    """Return ``length`` as an exact number.

    Args:
        length: The length.
        box: Periodic box.
        name: Name of the argument.

    Raises:
        TypeError: If the length is not a number.
        ValueError: If the length or the box is invalid; at run time if one is traced.
    """
    if isinstance(length, Exact):
        return length
    in_words = f"the linking length {name}" if name == "rlink" else name
    shape = shape_of(length, name)
    if shape != ():
        raise ValueError(f"{name} must be one length for all particles; its shape is {shape}.")
    if is_concrete(length):
        value = float(check_real(length, name))
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"{in_words} is {value:g}; it must be finite and not negative.")
        check_range(np.asarray(value), name, may_be_small=True)
    words = exact(length, ())
    return words if is_concrete(length) and is_concrete(box) else kernels.checked_lengths(box, words, in_words)[1]
