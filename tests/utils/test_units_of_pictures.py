"""The same catalogue in all three layouts gives the same picture: the tests read labels and numbers from the axes.

Values of the native layout are per h, like those of the snapshot, and those of SWIFT's layout do not contain h.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import headers
import numpy as np
import pytest

from jztree.data import FofCatalogue, ParticleData
from jztree_utils import io
from jztree_utils import mass_function as mf
from jztree_utils.cli._commands import plot
from jztree_utils.cli._commands.arguments import parse

pytest.importorskip("matplotlib")
_H, _BOX = 0.68, 50.0
_LAYOUTS = ("native", "gadget4", "swift", "soap")
_HEADER = replace(
    headers.FLAT,
    boxsize=_BOX,
    omega0=0.31,
    omega_lambda=0.69,
    omega_baryon=0.048,
    hubble=_H,
    npart_total=(0, 64**3, 0, 0, 0, 0),
    mass_table=(0.0,) * 6,
)
_INFO = io.CatalogueInfo(
    linking_length=0.2 * _BOX / 64, mean_separation=_BOX / 64, num_particles=64**3, ptype=1, header=_HEADER
)


def groups(random: np.random.Generator) -> FofCatalogue:
    count = np.sort(random.geometric(0.02, 400) + 19)[::-1].astype(np.int32)
    return FofCatalogue(
        ngroups=400,
        count=count,
        offset=(np.cumsum(count) - count).astype(np.int32),
        com_pos=random.random((400, 3)) * _BOX,
        com_inertia_radius=np.full(400, 0.1),
        max_radius=np.linspace(0.9, 0.2, 400),
        mass=4.1 * count,
    )


@pytest.fixture(params=_LAYOUTS)
def catalogue(request, tmp_path, random) -> tuple[str, Path, FofCatalogue]:
    path, held = tmp_path / "c.hdf5", groups(random)
    io.write_catalogue(path, held, info=_INFO, layout=request.param)
    return request.param, path, held


def draw(kind: str, *arguments: Any) -> Any:
    return plot._DRAW[kind](parse(["plot", kind, *map(str, arguments)]))


def test_mass_functions_are_in_units_per_h(catalogue) -> None:
    _, path, held = catalogue
    upper, lower = draw("mass-function", path).axes
    assert lower.get_xlabel() == r"group mass $M$ [$h^{-1}\,\mathrm{M}_\odot$]"
    assert upper.get_ylabel() == r"d$n$ / d$\,$log$_{10}\,M$ [$h^3\,\mathrm{Mpc}^{-3}$]"
    (drawn,) = upper.containers
    mass, density = drawn.lines[0].get_data()
    # Explicitly: bins of 0.2 decades in numbers of particles, with edges half-way between two numbers.
    minimum = held.count.min()
    edges = np.unique(np.round(minimum * 10 ** (0.2 * np.arange(20)))) - 0.5
    counted, _ = np.histogram(held.count, edges)
    kept = counted > 0
    np.testing.assert_allclose(mass, (np.sqrt(edges[1:] * edges[:-1]) * 4.1e10)[kept], rtol=1e-6)
    np.testing.assert_allclose(density, (counted / _BOX**3 / np.diff(np.log10(edges)))[kept], rtol=1e-6)
    x, curve = upper.lines[0].get_data()
    assumed = mf.Cosmology(omega_matter=0.31, omega_lambda=0.69, hubble=_H, omega_baryon=0.048)
    np.testing.assert_allclose(curve, mf.mass_function(assumed, x, 1.0) * np.log(10), rtol=1e-9)


def test_sizes_are_in_the_units_of_the_file(catalogue) -> None:
    layout, path, held = catalogue
    (ax,) = draw("sizes", path).axes
    per_h = layout not in ("swift", "soap")
    assert ax.get_xlabel() == f"group mass [1e10 Msun{'/h' if per_h else ''}]"
    np.testing.assert_allclose(ax.lines[0].get_xdata(), held.mass / (1 if per_h else _H), rtol=1e-6)


@pytest.mark.parametrize("kind", ["halos", "density"])
def test_groups_are_drawn_in_the_units_of_the_snapshot(kind, catalogue, tmp_path, random) -> None:
    _, path, held = catalogue
    pos = (random.random((64, 3)) * _BOX).astype(np.float32)
    snapshot = tmp_path / "s.hdf5"
    io.write_snapshot(snapshot, ParticleData(pos=pos, num=64), replace(_HEADER, npart_total=(0, 64, 0, 0, 0, 0)))
    figure = draw(kind, snapshot, "--catalogue", path)
    assert figure.axes[0].get_xlabel() == "x [Mpc/h]"
    (circles,) = figure.axes[0].collections
    ends = np.asarray([array.get_extents().get_points() for array in circles.get_paths()])
    nearest = np.abs(ends.mean(axis=1) - held.com_pos[0, :2]).max(axis=1).argmin()
    np.testing.assert_allclose(ends[nearest].mean(axis=0), held.com_pos[0, :2], rtol=1e-5)
    np.testing.assert_allclose(np.ptp(ends[nearest], axis=0) / 2, held.max_radius[0], rtol=1e-4)


def with_spheres(held: FofCatalogue) -> dict[str, io.Column]:
    """Return masses of spheres: one group in eight has none, and one sphere is larger than half the box."""
    particles = np.where(np.arange(len(held.count)) % 8 == 3, 0, held.count // 2)
    mass = np.where(np.arange(len(held.count)) == 4, np.nan, 4.1 * particles)
    return {name: io.Column(mass.astype(np.float32), "mass", "mass of a sphere") for name in ("m200m", "m200c")}


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_masses_of_spheres_have_their_own_model(layout, tmp_path, random, capsys) -> None:
    held = groups(random)
    io.write_catalogue(tmp_path / "c.hdf5", held, info=_INFO, layout=layout, extra=with_spheres(held))
    upper, lower = draw("mass-function", tmp_path / "c.hdf5", "--mass", "m200m").axes
    assert lower.get_xlabel() == r"$M$ = m200m [$h^{-1}\,\mathrm{M}_\odot$]"
    assert "51 of 400 groups have no m200m, and are left out" in capsys.readouterr().out
    (drawn,) = upper.containers
    mass, density = drawn.lines[0].get_data()
    # Explicitly: bins of 0.2 decades in numbers of particles, with edges between whole numbers.
    number = np.delete(held.count // 2, [4, *range(3, 400, 8)])
    edges = np.unique(np.round(number.min() * 10 ** (0.2 * np.arange(20)))) - 0.5
    counted, _ = np.histogram(number, edges)
    kept = counted > 0
    np.testing.assert_allclose(mass, (np.sqrt(edges[1:] * edges[:-1]) * 4.1e10)[kept], rtol=1e-5)
    np.testing.assert_allclose(density, (counted / _BOX**3 / np.diff(np.log10(edges)))[kept], rtol=1e-6)
    assert upper.get_legend_handles_labels()[1][0].startswith("Tinker et al. 2008 (200 × mean)\n")
    x, curve = upper.lines[0].get_data()
    assumed = mf.Cosmology(omega_matter=0.31, omega_lambda=0.69, hubble=_H, omega_baryon=0.048)
    np.testing.assert_allclose(curve, mf.mass_function(assumed, x, 1.0, "tinker") * np.log(10), rtol=1e-9)


_OF_GROUPS = "Warren et al. 2006 (b = 0.2) describes masses of groups, not"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["--model", "tinker"],
            "describes m200m, not masses of groups; choose --mass m200m or --model press_schechter",
        ),
        (["--mass", "m200m", "--model", "warren"], f"{_OF_GROUPS} m200m; choose --mass mass or --model"),
        (["--mass", "m200c"], f"{_OF_GROUPS} m200c; choose --mass mass or --model press_schechter or sheth_tormen"),
        (["--mass", "m200m"], "its spheres hold only type 1; without type 0 (5 particles, mass 3)"),
    ],
)
def test_no_curve_of_a_model_for_other_masses(arguments, reason, tmp_path, random, capsys) -> None:
    held, info = groups(random), _INFO
    if reason.startswith("its spheres"):
        info = replace(_INFO, spheres_of="type 1; without type 0 (5 particles, mass 3)")
    io.write_catalogue(tmp_path / "c.hdf5", held, info=info, extra=with_spheres(held))
    assert len(draw("mass-function", tmp_path / "c.hdf5", *arguments).axes) == 1
    assert reason in capsys.readouterr().out


def test_a_model_without_a_definition_of_mass_has_a_curve_for_every_mass(tmp_path, random) -> None:
    held = groups(random)
    io.write_catalogue(tmp_path / "c.hdf5", held, info=_INFO, extra=with_spheres(held))
    for arguments in ([], ["--mass", "m200c"]):
        figure = draw("mass-function", tmp_path / "c.hdf5", "--model", "sheth_tormen", *arguments)
        assert figure.axes[0].get_legend_handles_labels()[1][0].startswith("Sheth & Tormen 1999\n")


@pytest.mark.parametrize("mass", ["m500c", "Group_M_Mean200", "r200m", "MASS"])
def test_mass_missing_in_the_catalogue_raises(mass, tmp_path, random) -> None:
    held = groups(random)
    extra = with_spheres(held) | {"r200m": io.Column(held.max_radius, "length", "a radius")}
    io.write_catalogue(tmp_path / "c.hdf5", held, info=_INFO, extra=extra)
    with pytest.raises(ValueError, match=rf"--mass is {mass}, but .* has mass, m200c, m200m; jztree fof --properties"):
        draw("mass-function", tmp_path / "c.hdf5", "--mass", mass)


def test_spheres_of_many_particles_of_other_masses_are_counted_once(tmp_path, random) -> None:
    """With gas, the mass of a sphere is not a multiple of the mass of a dark matter particle."""
    held = groups(random)
    mass = 0.7 * random.random(400) + 0.01  # less than a dark matter particle
    extra = {"m200m": io.Column(mass, "mass", "mass of a sphere")}
    io.write_catalogue(tmp_path / "c.hdf5", held, info=_INFO, extra=extra)
    upper = draw("mass-function", tmp_path / "c.hdf5", "--mass", "m200m").axes[0]
    assert "400 groups" in upper.get_legend_handles_labels()[1]


def test_the_legend_holds_the_cosmology(tmp_path, random) -> None:
    held, path = groups(random), tmp_path / "c.hdf5"
    io.write_catalogue(path, held, info=_INFO, extra=with_spheres(held))
    options = ["--sigma8", "0.9", "--n-s", "1", "--model", "tinker", "--mass", "m200m"]
    figure = draw("mass-function", path, *options)
    label = figure.axes[0].get_legend_handles_labels()[1][0]
    assert label == "Tinker et al. 2008 (200 × mean)\n$\\sigma_8$ = 0.9, $n_s$ = 1"
    x, curve = figure.axes[0].lines[0].get_data()
    assumed = mf.Cosmology(omega_matter=0.31, omega_lambda=0.69, hubble=_H, omega_baryon=0.048, sigma8=0.9, n_s=1.0)
    np.testing.assert_allclose(curve, mf.mass_function(assumed, x, 1.0, "tinker") * np.log(10), rtol=1e-9)


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"ptype": 0}, "the groups are of particles of type 0"),
        ({"linking_length": 0.15 * _BOX / 64}, "the linking length is 0.15 mean separations, not 0.2"),
        ({"linking_length": 0.3 * _BOX / 64, "mean_separation": None}, "the linking length is 0.3 mean separations"),
        (
            {"header": replace(_HEADER, npart_total=(9, 64**3, 0, 0, 0, 0))},
            "only dark matter, but the snapshot has gas",
        ),
        ({"header": replace(_HEADER, omega_lambda=None)}, "it has no cosmology"),
        ({"header": replace(_HEADER, unit_mass_in_g=None)}, "its units or h are unknown"),
    ],
)
def test_no_curve_for_masses_that_the_model_does_not_describe(info, reason, tmp_path, random, capsys) -> None:
    io.write_catalogue(tmp_path / "c.hdf5", groups(random), info=replace(_INFO, **info))
    assert len(draw("mass-function", tmp_path / "c.hdf5").axes) == 1
    assert reason in capsys.readouterr().out


def test_units_free_of_h_without_h_are_shown_unchanged(tmp_path, random) -> None:
    header = replace(_HEADER, h_free=True, hubble=None)
    io.write_catalogue(tmp_path / "c.hdf5", groups(random), info=replace(_INFO, header=header))
    (ax,) = draw("mass-function", tmp_path / "c.hdf5").axes
    assert ax.get_xlabel() == "group mass $M$ [1e10 Msun]"
    assert mf.units_of(header) is None
    assert mf.units_of(replace(header, hubble=0.5)) == pytest.approx((0.5, 5e9))
    assert mf.units_of(replace(_HEADER, comoving=False)) is None
