"""Snapshots, particles, catalogues and neighbour lists on disk, all in HDF5.

Many devices and processes: with `read_snapshot_sharded` and `distr_write_hdf5` every process reads and writes only its
own data.

Other functions return NumPy arrays instead of JAX arrays. JAX does not support 64-bit identifiers (nor float64
positions) unless its 64-bit mode is on, and would silently drop their upper bits. JAX functions also accept NumPy
arrays.

Each error message is one sentence with the input and a remedy: `SnapshotError` (a ValueError) for an unusable file,
`OutputError` (an OSError) for a file that cannot be written. Files are written under another name and renamed when they
are complete, so a failure leaves no incomplete files.
"""

from ._attributes import text_attribute as text_attribute
from ._catalogue import (
    ReadCatalogue,
    canonical_order,
    catalogue_layout,
    check_layout,
    find_catalogue_parts,
    is_catalogue,
    read_catalogue,
    read_catalogue_content,
    write_catalogue,
    write_catalogue_content,
)
from ._catalogue_content import (
    NUM_TYPES,
    CatalogueContent,
    CatalogueInfo,
    Column,
    TypeTable,
    catalogue_columns,
    convert_h,
    member_rows,
)
from ._catalogue_content import write_column as write_column
from ._cluster_file import ParticleClusters, read_clusters, write_clusters
from ._correlation_file import write_correlation
from ._data_sets import read_from_hdf5, read_h5file, squeeze_any, write_h5file, write_to_hdf5
from ._distributed_writing import distr_write_hdf5
from ._errors import OutputError, SnapshotError
from ._files import atomic_output, check_output
from ._files import check_is_file as check_is_file
from ._files import create_hdf5 as create_hdf5
from ._files import open_hdf5 as open_hdf5
from ._files import output_path as output_path
from ._files import remove_unfinished as remove_unfinished
from ._files import unreadable as unreadable
from ._files_of_snapshot import base_name as base_name
from ._files_of_snapshot import number_in_name as number_in_name
from ._gadget_catalogue import write_parameters as write_parameters
from ._group_numbers import group_number_columns, group_number_parameters, number_subhaloes
from ._hdf5_columns import read_all as read_all
from ._header import SnapshotHeader, unit_name
from ._made_with import read_made_with
from ._mass_table import differing_masses as differing_masses
from ._mass_table import mass_in_table as mass_in_table
from ._mass_table import same_masses as same_masses
from ._members import read_members
from ._neighbour_lists import Neighbours, read_neighbours, write_neighbours
from ._processes import failing_together, is_shared, rows_on_first_process
from ._read_options import ReadOptions
from ._row_order import RowOrder, group_of_rows
from ._sharded_reading import (
    join_words,
    num_of_each_rank,
    read_snapshot_sharded,
    shard_rows,
    shard_snapshot,
    share,
    split_words,
)
from ._snapshot import Snapshot, find_parts, find_sources, open_snapshot, read_header, read_snapshot
from ._snapshot_copy import AddedColumn, check_copied, copy_snapshot, names_of_files
from ._snapshot_writer import write_snapshot
from ._subhalo_order import OrderedSubhaloes, order_with_subhaloes, subhalo_columns
from ._subhaloes import order_by_binding
from ._subhaloes import with_gadget4_names as with_gadget4_names
from ._tables import check_parquet

# Other packages of `jztree_utils` also import the names that are not in this list.
__all__ = [
    "NUM_TYPES",
    "AddedColumn",
    "CatalogueContent",
    "CatalogueInfo",
    "Column",
    "Neighbours",
    "OrderedSubhaloes",
    "OutputError",
    "ParticleClusters",
    "ReadCatalogue",
    "ReadOptions",
    "RowOrder",
    "Snapshot",
    "SnapshotError",
    "SnapshotHeader",
    "TypeTable",
    "atomic_output",
    "canonical_order",
    "catalogue_columns",
    "catalogue_layout",
    "check_copied",
    "check_layout",
    "check_output",
    "check_parquet",
    "convert_h",
    "copy_snapshot",
    "distr_write_hdf5",
    "failing_together",
    "find_catalogue_parts",
    "find_parts",
    "find_sources",
    "group_number_columns",
    "group_number_parameters",
    "group_of_rows",
    "is_catalogue",
    "is_shared",
    "join_words",
    "member_rows",
    "names_of_files",
    "num_of_each_rank",
    "number_subhaloes",
    "open_snapshot",
    "order_by_binding",
    "order_with_subhaloes",
    "read_catalogue",
    "read_catalogue_content",
    "read_clusters",
    "read_from_hdf5",
    "read_h5file",
    "read_header",
    "read_made_with",
    "read_members",
    "read_neighbours",
    "read_snapshot",
    "read_snapshot_sharded",
    "rows_on_first_process",
    "shard_rows",
    "shard_snapshot",
    "share",
    "split_words",
    "squeeze_any",
    "subhalo_columns",
    "unit_name",
    "write_catalogue",
    "write_catalogue_content",
    "write_clusters",
    "write_correlation",
    "write_h5file",
    "write_neighbours",
    "write_snapshot",
    "write_to_hdf5",
]
