"""Correlation functions in HDF5, with the groups ``Header`` and ``Correlation``."""

from typing import TYPE_CHECKING

import numpy as np

from ._catalogue_content import Column, write_column
from ._files import PathLike, create_hdf5
from ._header import SnapshotHeader
from ._native_catalogue import write_header_group

if TYPE_CHECKING:
    from ..correlation import Correlation


def write_correlation(
    path: PathLike,
    correlation: "Correlation",
    header: SnapshotHeader,
    along: np.ndarray | None,
    los: int,
    num: int,
    made_with: str | None = None,
) -> None:
    """Write a correlation function of a periodic box as HDF5, with the unit of each dataset as attributes.

    Args:
        path: The file to write; an existing file is replaced once the new one is complete.
        correlation: ``xi(r)``, or ``wp(rp)``.
        header: Header of the snapshot.
        along: ``(p + 1,)`` edges along the line of sight for ``wp``, otherwise None.
        los: The axis of the line of sight.
        num: Number of particles.
        made_with: The options of the call, as the command line writes them.

    Raises:
        OutputError: If the file cannot be written.
    """
    with create_hdf5(path) as file:
        write_header_group(file, header)
        group = file.create_group("Correlation")
        group.attrs.update(
            {
                "statistic": "xi" if along is None else "wp",
                "estimator": "DD / RR - 1, with the RR of a periodic box (Peebles & Hauser 1974, ApJS 28, 19)",
                "particles": num,
            }
        )
        if along is not None:
            group.attrs.update({"pi_max": float(along[-1]), "pi_bins": len(along) - 1, "line_of_sight": "xyz"[los]})
        if made_with is not None:
            group.attrs["made_with"] = made_with
        for name, column in _columns(correlation, along is not None).items():
            write_column(group, name, column, header)


def _columns(correlation: "Correlation", projected: bool) -> dict[str, Column]:
    distance = "comoving distance across the line of sight" if projected else "comoving distance"
    value = (
        ("length", "projected correlation function wp, twice the integral of xi along the line of sight up to pi_max")
        if projected
        else ("1", "correlation function xi")
    )
    return {
        "edges": Column(
            correlation.edges, "length", f"edges of bins of the {distance}; a pair at an edge is in the bin below"
        ),
        "centre": Column(correlation.centre, "length", "geometric mean of the edges of each bin"),
        "pairs": Column(correlation.pairs, "1", "pairs of particles in each bin, each in both orders"),
        "value": Column(correlation.value, *value),
    }
