"""A particle argument, parsed once."""

from dataclasses import dataclass, field
from typing import Any

import jax

from ..data import TreeHierarchy
from ..particles import get_pos


@dataclass
class InputParticles:
    """A particle argument, parsed once.

    Attributes:
        part: Particle class, or positions, whose rows move.
        num: Number of rows that hold particles.
        data: Pytree of arrays ``(n, ...)`` that move with the rows, or None.
        name: Name of the rows in messages.
        th: Hierarchy over ``part`` from the user; ``part`` is then in z-order.
        needs_origin: Whether the search needs the rank and row of each particle in the input, over ranks.
        pos: Positions ``(n, d)``.
    """

    part: Any
    num: int | jax.Array
    data: Any = None
    name: str = "the positions"
    th: TreeHierarchy | None = None
    needs_origin: bool = True
    pos: jax.Array = field(init=False)

    def __post_init__(self) -> None:
        self.pos = get_pos(self.part)

    @property
    def num_rows(self) -> int:
        """Number of rows, ``n``."""
        return int(self.pos.shape[0])

    @property
    def dims(self) -> int:
        """Number of dimensions."""
        return int(self.pos.shape[1])
