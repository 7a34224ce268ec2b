"""Links between the subhaloes of different outputs of a simulation: the descendants of each, by common particles."""

from ._descendants import Descendants, Weights, descendants, skip_output
from ._members import SubhaloMembers

__all__ = ["Descendants", "SubhaloMembers", "Weights", "descendants", "skip_output"]
