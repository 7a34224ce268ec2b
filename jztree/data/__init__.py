"""Particle classes with padding, the friends-of-friends catalogue, and helpers to pad, squeeze and reshape them.

A particle class is any pytree with ``pos`` of shape ``(n, d)``, which is a leaf or computed from leaves. If it has
padding, it also has ``num``: the number of rows that hold particles. It needs nothing else; the classes here are
examples.

If the *first* axis of a leaf is as long as that of ``pos``, the leaf is a property of the particles and moves with
them. All other leaves (``num``, a mass that all particles share) are unchanged. Arrays with one row per particle that
are not leaves could not move, so they are an error; see `jztree.particles`.
"""

from ..particles import Particles, get_pos
from ..particles import check_no_unit as check_no_unit
from ..particles import check_no_units as check_no_units
from ..particles import check_representable as check_representable
from ..particles import fits_float32 as fits_float32
from . import _tables as tables  # noqa: F401
from ._catalogue import FofCatalogue, squeeze_catalogue
from ._classes import Array, Label, ParticleData, Pos, PosMass, RankIdx, static_field
from ._computed import release as release
from ._computed import with_computed as with_computed
from ._hierarchy import TreeHierarchy
from ._local import from_local, to_local
from ._rows import (
    all_particles_equal,
    expand_particles,
    flatten_particles,
    get_num,
    get_num_total,
    get_pos_mass,
    map_rows,
    pad_particles,
    replace_num,
    split_rows,
    squeeze_any,
    squeeze_particles,
)
from ._rows import without_padding as without_padding
from ._rows import zero_padding_if_derived as zero_padding_if_derived
from ._sorted import catalogues_equal, sort_catalogue

__all__ = [
    "Array",
    "FofCatalogue",
    "Label",
    "ParticleData",
    "Particles",
    "Pos",
    "PosMass",
    "RankIdx",
    "TreeHierarchy",
    "all_particles_equal",
    "catalogues_equal",
    "expand_particles",
    "flatten_particles",
    "from_local",
    "get_num",
    "get_num_total",
    "get_pos",
    "get_pos_mass",
    "map_rows",
    "pad_particles",
    "replace_num",
    "sort_catalogue",
    "split_rows",
    "squeeze_any",
    "squeeze_catalogue",
    "squeeze_particles",
    "static_field",
    "to_local",
]
