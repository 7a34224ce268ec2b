"""Accepted particle inputs: their positions, numbers and properties, and arrays of other libraries."""

from ._computed import ComputedParticles, attach_columns, computed_by, over_devices
from ._dlpack import import_arrays
from ._index import Index, check_devices, particles_of
from ._inputs import (
    Array,
    Particles,
    check_countable,
    check_known,
    check_movable,
    check_no_unit,
    check_no_units,
    check_num,
    check_representable,
    check_rows,
    check_width,
    field_names,
    fits_float32,
    get_num,
    get_num_total,
    get_pos,
    num_rows,
    one_integer,
    replace_field,
    shape_of_pos,
)
from ._messages import name_of, one_line
