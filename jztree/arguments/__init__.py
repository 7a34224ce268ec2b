"""Validation of arguments: particles, boxes, lengths and radii, and their faults at run time."""

from ._box import check_box, check_classes, exact_box_argument, no_box, sequence_of
from ._faults import check_in_range, first_row, row_fault, rows_fault, value_of_row
from ._flat import Kind, box_of, flat, one_length
from ._lengths import check_length
from ._numbers import (
    at_least_normal,
    check_constant,
    check_error,
    check_range,
    check_real,
    check_real_dtype,
    common_dtype,
    farthest,
    farthest_number,
    in_order,
    is_length,
    is_subnormal,
    known_integer,
    root_of_constant,
    shape_of,
    shown,
)
from ._positions import MAX_DIMS, check_alike, check_particles, check_positions, check_queries
from ._properties import SUMS_ROUNDED, check_mass, check_one_a_particle, mass_faults, mass_rows, velocity_faults
from ._radii import NO_LIMIT, SPEC, Radii, as_ascending, as_limit, as_one_radius, is_given, rows_and_num
from ._words import check_flag, check_word
