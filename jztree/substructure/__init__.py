"""Bound subhaloes of friends-of-friends groups.

The candidates are the overdense sets of each group, which SUBFIND defines (Springel et al. 2001, MNRAS 328, 726). From
each, particles that are not bound are removed. See the page on subhaloes for all definitions and their papers.
"""

from ._finder import subhaloes
from ._table import Subhaloes

__all__ = ["Subhaloes", "subhaloes"]
