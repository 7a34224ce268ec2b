"""Bound subhaloes of friends-of-friends groups.

The candidates are the overdense sets of each group, which SUBFIND defines (Springel et al. 2001, MNRAS 328, 726). From
each, particles that are not bound are removed. `DEFINITIONS` describes all columns.
"""

from ._definitions import DEFINITIONS
from ._finder import subhaloes
from ._table import Subhaloes

__all__ = ["DEFINITIONS", "Subhaloes", "subhaloes"]
