"""The check of the subhaloes that ``jztree fof --subhaloes`` writes."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from jztree.data import FofCatalogue, ParticleData

from ... import io, verify
from .._particles.bound_subhaloes import hubble_constant
from .._particles.group_properties import SOFTENING
from .._particles.known_properties import newton
from .verify_properties import OF_SUBHALOES

NEEDED_OF_SUBHALOES = {"group", "count", "pos", "vel", "parent", "depth", "most_bound_id"}  # columns for the check


def verify_subhaloes(
    args: Namespace,
    content: io.CatalogueContent,
    made_with: Mapping[str, Any],
    grouped: tuple[ParticleData, FofCatalogue, np.ndarray, np.ndarray],
    snapshots: Sequence[io.Snapshot],
) -> verify.Verification:
    """Check the table of subhaloes.

    Args:
        args: The arguments of the call.
        content: The catalogue, in the units of the snapshot.
        made_with: The options of the search.
        grouped: The members in group order, their groups, their identifiers, and their rows in the snapshot.
        snapshots: The snapshot, opened for each type that may be in groups.
    """
    part, cata, ids, rows = grouped
    table, header = content.subhaloes or {}, snapshots[0].header
    columns: dict[str, Any] = {name: column.values for name, column in table.items()}
    order = np.argsort(ids)
    place = np.searchsorted(ids, columns["most_bound_id"], sorter=order)
    columns["most_bound"] = order[np.minimum(place, len(ids) - 1)] if len(ids) else place
    label = io.number_subhaloes({0: np.arange(len(ids))}, table, np.asarray(cata.count))[0]
    gravity, softening = newton(header) or 0.0, made_with.get("softening")
    check = verify.subhaloes(
        part,
        cata,
        SimpleNamespace(num=len(columns["group"]), subhalo=label, **columns),
        gravity,
        softening=SOFTENING * (content.info.linking_length or 0.0) if softening is None else softening,
        boxsize=header.boxsize or None,
        hubble=hubble_constant(header, gravity, [snapshot.ptype for snapshot in snapshots]),
        scale_factor=header.scale_factor,
        internal_energy=np.concatenate([_internal_energies(snapshot) for snapshot in snapshots])[rows],
        is_ordered=True,
        samples=args.samples,
    )
    wrong = np.flatnonzero(ids[columns["most_bound"]] != columns["most_bound_id"]) if len(ids) else ()
    faults = [f"the most bound particle of subhalo {row} is in no group" for row in wrong]
    names = [{"most_bound": "most_bound_id"}.get(name, name) for name in check.columns]
    if "count_by_type" in columns:
        names.append("count_by_type")
        types = np.repeat([snapshot.ptype for snapshot in snapshots], [snapshot.num for snapshot in snapshots])[rows]
        counts = np.zeros((len(columns["group"]), io.NUM_TYPES), int)
        np.add.at(counts, (label[label >= 0], types[label >= 0]), 1)
        wrong = np.flatnonzero((counts != columns["count_by_type"]).any(axis=1))
        faults += [f"subhalo {row} has {counts[row].tolist()} particles of each type" for row in wrong]
    return replace(check, faults=(*faults, *check.faults), columns=tuple(f"{OF_SUBHALOES}{name}" for name in names))


def _internal_energies(snapshot: io.Snapshot) -> np.ndarray:
    """Return the internal energies of a type, 0 without."""
    name = "internal_energy"
    return snapshot.read(name) if name in snapshot.present((), (name,)) else np.zeros(snapshot.num)
