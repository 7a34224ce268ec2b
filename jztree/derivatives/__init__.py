"""Common parts of derivatives: differences of periodic images, and the members of groups."""

from ._images import as_norm, nearest_difference, norm, ratio, unit, wrapped
from ._membership import Members, from_rows, joined_members, members_of, or_one, rows_of_all_ranks
