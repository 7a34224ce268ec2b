"""Common parts of derivatives: differences of periodic images, the members of groups, and transposes of kernels."""

from ._images import as_norm, nearest_difference, norm, ratio, unit, wrapped
from ._linear import Linear as Linear
from ._linear import apply_linear as apply_linear
from ._membership import Members, from_rows, joined_members, members_of, or_one, rows_of_all_ranks
