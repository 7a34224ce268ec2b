"""Clusters of particles in HDF5, with the groups ``Header``, ``Particles`` and ``Clusters``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ._attributes import text_attribute
from ._catalogue_content import Column, write_column
from ._files import PathLike, create_hdf5, get_dataset, get_group, open_hdf5
from ._hdf5_columns import check_form, read_all
from ._header import SnapshotHeader
from ._native_catalogue import read_header_group, write_header_group

# Each column with its unit, its meaning, and the kinds of its dtype.
_OF_PARTICLES = {
    "label": ("1", "number of the cluster of each particle, in the order of the snapshot; -1 for noise", "iu"),
    "probability": ("1", "strength of the membership, from 0 to 1; 0 for noise", "f"),
    "outlier_score": ("1", "GLOSH score (Campello et al. 2015), from 0 to 1; large for outliers", "f"),
    "id": ("1", "identifiers of the particles", "iu"),
}
_OF_CLUSTERS = {
    "count": ("1", "number of particles of each cluster", "iu"),
    "centre": ("length", "mean comoving position of each cluster, weighted by the probabilities", "f"),
    "max_radius": ("length", "comoving distance of the farthest particle from the centre", "f"),
}


@dataclass(kw_only=True)
class ParticleClusters:
    """Clusters of ``n`` particles, see `jztree_utils.hdbscan.Clusters`.

    Attributes:
        label: ``(n,)`` integers, the cluster of each particle, -1 for noise.
        probability: ``(n,)`` floats, the strength of the membership.
        outlier_score: ``(n,)`` floats.
        count: ``(c,)`` integers, the number of particles of each cluster.
        centre: ``(c, d)`` floats, comoving.
        max_radius: ``(c,)`` floats, the comoving distance of the farthest particle from the centre.
        id: ``(n,)`` integers, identifiers of the particles, or None.
        header: Header of the snapshot: box, cosmology, units.
        made_with: The options of the call that found the clusters, as the command line writes them.
    """

    label: Any
    probability: Any
    outlier_score: Any
    count: Any
    centre: Any
    max_radius: Any
    id: Any = None
    header: SnapshotHeader | None = None
    made_with: str | None = None


def write_clusters(path: PathLike, clusters: ParticleClusters) -> None:
    """Write clusters as HDF5, with the unit of each dataset as attributes.

    Args:
        path: The file to write; an existing file is replaced once the new one is complete.
        clusters: The clusters.

    Raises:
        ValueError: If a column has a wrong shape or dtype.
        OutputError: If the file cannot be written.
    """
    _check_columns(clusters)
    header = clusters.header or SnapshotHeader()
    with create_hdf5(path) as file:
        write_header_group(file, clusters.header)
        for name, columns in (("Particles", _OF_PARTICLES), ("Clusters", _OF_CLUSTERS)):
            group = file.create_group(name)
            for column, (unit, words, _) in columns.items():
                if getattr(clusters, column) is not None:
                    write_column(group, column, Column(getattr(clusters, column), unit, words), header)
        if clusters.made_with is not None:
            file["Clusters"].attrs["made_with"] = clusters.made_with


def read_clusters(path: PathLike) -> ParticleClusters:
    """Read clusters of `write_clusters` as NumPy arrays.

    Raises:
        SnapshotError: If the clusters cannot be read.
    """
    with open_hdf5(Path(path)) as file:
        result: dict[str, Any] = {}
        for name, columns in (("Particles", _OF_PARTICLES), ("Clusters", _OF_CLUSTERS)):
            group = get_group(file, name)
            first = next(iter(columns))
            rows = (get_dataset(file, f"{name}/{first}").shape or (0,))[:1]
            for column, (_, _, kinds) in columns.items():
                if column == "id" and column not in group:
                    continue
                data = get_dataset(file, f"{name}/{column}")
                shape = (*rows, *(data.shape or ())[1:2]) if column == "centre" else rows
                check_form(data, kinds, shape, f"like {name}/{first}")
                result[column] = read_all(file, f"{name}/{column}")
        made_with = text_attribute(get_group(file, "Clusters"), "made_with") or None
        return ParticleClusters(**result, header=read_header_group(file), made_with=made_with)


def _check_columns(clusters: ParticleClusters) -> None:
    """Raise ValueError unless `read_clusters` could read the clusters."""
    for columns in (_OF_PARTICLES, _OF_CLUSTERS):
        rows = (np.shape(getattr(clusters, next(iter(columns)))) or (0,))[0]
        for name, (_, _, kinds) in columns.items():
            values = np.asarray(getattr(clusters, name))
            if name == "id" and getattr(clusters, name) is None:
                continue
            if values.shape[:1] != (rows,) or values.ndim != 1 + (name == "centre") or values.dtype.kind not in kinds:
                required = f"({rows}, d)" if name == "centre" else f"({rows},)"
                kind = "floats" if kinds == "f" else "integers"
                raise ValueError(
                    f"{name} of clusters is {values.dtype} of shape {values.shape}; it must be {kind} of shape "
                    f"{required}."
                )
