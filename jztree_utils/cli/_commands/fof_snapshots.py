"""The snapshot copies of ``jztree fof``: in group order, or with the group number of each particle."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ... import io
from ...progress import progress
from .._report import is_quiet, stage, warn
from .outputs import Run

_NOT_IN_ORDER = (
    "GroupOffsetType and GroupLenType of {output} refer to the snapshot in group order, but {path} has another order, "
    "so "
    "readers such as pynbody would take wrong particles from it. --snapshot-output FILE writes the snapshot in group "
    "order."
)


def write_copies(
    run: Run,
    snapshot: io.Snapshot,
    groups: Mapping[int, np.ndarray],
    ngroups: int,
    info: io.CatalogueInfo,
    layout: str,
    places: Mapping[int, np.ndarray] | None = None,
    subhaloes: Mapping[int, np.ndarray] | None = None,
) -> None:
    """Write the requested copies.

    Args:
        run: The names of the copies.
        snapshot: The snapshot.
        groups: By type, ``(n,)``: the number of the group of each particle, ``ngroups`` without a group.
        ngroups: Number of groups.
        info: How they were found.
        layout: Layout of the catalogue.
        places: By type, ``(n,)``: the place of each particle among the members, if the copy in group order also has
            the members of each group in another order than the snapshot.
        subhaloes: By type, ``(n,)``: the subhalo of each particle, -1 for none; None without subhaloes.
    """
    if run.snapshot_output is not None:
        with stage("find the group order"):
            keys = groups if places is None else places
            order = {ptype: io.RowOrder.by_group(numbers) for ptype, numbers in keys.items()}
        _copy(run.snapshot_output, snapshot, info, order=order, num_files=run.snapshot_files)
        del order
    if run.group_ids_output is not None:
        columns = io.group_number_columns(groups, ngroups, info, layout, subhaloes)
        attributes = io.group_number_parameters(info)
        files = run.snapshot_files
        _copy(run.group_ids_output, snapshot, info, columns=columns, attributes=attributes, num_files=files)


def _copy(path: str, snapshot: io.Snapshot, info: io.CatalogueInfo, **changes: Any) -> None:
    """Write the snapshot with changes, which are arguments of `io.copy_snapshot`, and report the stage."""
    total = sum(snapshot.types.values())
    with (
        stage("write the snapshot", total) as report,
        progress("write the snapshot", total, quiet=is_quiet()) as advance,
    ):
        io.copy_snapshot(path, snapshot.paths, info=info, advance=advance, **changes)
        report.detail = path


def warn_of_order(run: Run, layout: str) -> None:
    """Warn if a catalogue in the layout of Gadget-4 refers to a snapshot in group order that is not written."""
    if layout == "gadget4" and run.output is not None and run.snapshot_output is None:
        warn(_NOT_IN_ORDER.format(output=run.output, path=run.path))
