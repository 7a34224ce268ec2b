"""Links between the subhaloes of different outputs of a simulation: the descendants of each, by common particles."""

from ._descendants import Descendants, descendants, skip_output
from ._descendants import Weights as Weights
from ._members import SubhaloMembers

__all__ = ["Descendants", "SubhaloMembers", "descendants", "skip_output"]
