"""Arrays with a unit are refused if they would become plain numbers, in pictures, files and mass functions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.test_particle_numbers import in_unit
from test_catalogues import make_catalogue

from jztree import data
from jztree_utils import cells, correlation, io, knn_statistics, plot, separation, sky
from jztree_utils import mass_function as mf


def calls(folder: Path, built: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    """Return calls by the name of the argument with a unit. made: adds a unit to numbers."""
    pos = np.random.default_rng(0).random((40, 3)).astype(np.float32)
    cata = make_catalogue(np.full(4, 10), np.random.default_rng(1))
    placed, heavy = replace(cata, com_pos=built(cata.com_pos)), replace(cata, mass=built(cata.mass))
    neighbours = io.Neighbours(distances=built(pos), indices=np.zeros((40, 3), np.int32))
    header = io.SnapshotHeader(boxsize=built(1.0))
    spoilt = {"x": io.Column(built(np.ones(4)), "length", "")}
    return {
        "pos in plot_density": lambda: plot.plot_density(built(pos), 1.0),
        "boxsize in plot_density": lambda: plot.plot_density(pos, built(1.0)),
        "mass in plot_density": lambda: plot.plot_density(pos, 1.0, mass=built(pos[:, 0])),
        "catalogue.com_pos in plot_halos": lambda: plot.plot_halos(pos, placed, 1.0),
        "spheres['r200c'] in with_radii": lambda: plot.with_radii(cata, 40, 1.0, {"r200c": built(np.ones(4))}),
        "catalogue.mass in plot_group_sizes": lambda: plot.plot_group_sizes(heavy),
        "groups in plot_mass_function": lambda: plot.plot_mass_function(built(cata.mass), 1.0),
        "groups.mass in plot_mass_function": lambda: plot.plot_mass_function(heavy, 1.0),
        "distances in plot_neighbour_distances": lambda: plot.plot_neighbour_distances(built(pos)),
        "catalogue.com_pos in write_catalogue": lambda: io.write_catalogue(folder / "c.hdf5", placed),
        "x in write_catalogue": lambda: io.write_catalogue(folder / "c.hdf5", cata, extra=spoilt),
        "linking_length in write_catalogue": lambda: io.write_catalogue(
            folder / "c.hdf5", cata, info=io.CatalogueInfo(linking_length=built(0.1))
        ),
        "BoxSize in write_catalogue": lambda: io.write_catalogue(
            folder / "c.hdf5", cata, info=io.CatalogueInfo(header=header)
        ),
        "distances in write_neighbours": lambda: io.write_neighbours(folder / "n.hdf5", neighbours),
        "part.pos in canonical_order": lambda: io.canonical_order(data.Pos(pos=built(pos)), cata),
        "boxsize in ReadOptions": lambda: io.ReadOptions(boxsize=built(1.0)),
        "unit_length_in_cm in ReadOptions": lambda: io.ReadOptions(unit_length_in_cm=built(1.0)),
        "mass in mean_separation": lambda: separation.mean_separation(io.SnapshotHeader(), 9, built(1.0)),
        "mass in mass_function": lambda: mf.mass_function(mf.Cosmology(), built([1e13])),
        "ra in to_cartesian": lambda: sky.to_cartesian(built(np.ones(4)), np.ones(4)),
        "source_dec in match": lambda: sky.match(np.ones(4), np.ones(4), np.ones(4), built(np.ones(4))),
        "distance in to_cartesian": lambda: sky.to_cartesian(np.ones(4), np.ones(4), built(np.ones(4))),
        "radii in knn_cdf": lambda: knn_statistics.knn_cdf(pos, 1, built([0.1]), pos),
        "queries in knn_cdf": lambda: knn_statistics.knn_cdf(pos, 1, [0.1], built(pos)),
        "boxsize in random_queries": lambda: knn_statistics.random_queries(9, built(1.0)),
        "part in totals": lambda: correlation.totals(built(pos)),
        "part in cube_regions": lambda: correlation.cube_regions(built(pos), 0, 1, 2),
        "upper in cube_regions": lambda: correlation.cube_regions(pos, 0, built(1.0), 2),
        "pos in pairs_in_cell": lambda: cells.pairs_in_cell(built(pos), 0.1, np.eye(3)),
    }


def check_refused(folder: Path, built: Callable[..., Any]) -> None:
    for name, call in calls(folder, built).items():
        with pytest.raises(TypeError) as error:
            call()
        what = name.partition(" in ")[0]
        assert str(error.value).startswith(f"{what} has the unit Mpc, which jztree would drop; pass plain numbers"), (
            name
        )
    assert not list(folder.iterdir())


def test_units_in_the_style_of_astropy(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    check_refused(tmp_path, lambda values: in_unit(values, "Mpc"))


def test_units_of_astropy(tmp_path) -> None:
    units = pytest.importorskip("astropy.units")
    check_refused(tmp_path, lambda values: units.Quantity(values, "Mpc"))


def test_units_of_unyt(tmp_path) -> None:
    unyt = pytest.importorskip("unyt")
    check_refused(tmp_path, lambda values: unyt.unyt_array(values, "Mpc"))


@pytest.mark.parametrize(("package", "kind"), [("astropy.units", "Quantity"), ("unyt", "unyt_array")])
def test_functions_of_the_host_keep_units(package: str, kind: str) -> None:
    built = getattr(pytest.importorskip(package), kind)(np.ones((4, 3)), "Mpc")
    for part in (data.squeeze_particles(data.Pos(pos=built, num=2)), data.pad_particles(data.Pos(pos=built), 2)):
        assert type(part.pos) is type(built)
