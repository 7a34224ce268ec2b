"""Pictures: what is drawn, in which format, and what is refused."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from jztree.data import FofCatalogue, PosMass
from jztree.fof import fof_and_catalogue
from jztree_utils import ics, io, plot

matplotlib = pytest.importorskip("matplotlib")


def catalogue(pos: np.ndarray, count: list[int], radius: float, with_mass: bool = True) -> FofCatalogue:
    counts = np.asarray(count, np.int32)
    return FofCatalogue(
        ngroups=len(counts),
        count=counts,
        offset=np.cumsum(counts) - counts,
        com_pos=pos,
        com_inertia_radius=np.full(len(counts), radius / 2),
        max_radius=np.full(len(counts), radius),
        mass=2.0 * counts if with_mass else None,
    )


def circles(figure) -> np.ndarray:
    """Centres of the circles that are drawn."""
    (collection,) = figure.axes[0].collections
    return np.asarray([path.get_extents().get_points().mean(axis=0) for path in collection.get_paths()])


def radii(figure) -> np.ndarray:
    (collection,) = figure.axes[0].collections
    return np.asarray([np.ptp(path.get_extents().get_points()[:, 0]) / 2 for path in collection.get_paths()])


def test_groups_of_unknown_size_have_circles_of_their_mean_density() -> None:
    pos = np.random.default_rng(0).random((1000, 3)) * 4
    foreign = replace(catalogue(pos[:2], [80, 10], 0.1), max_radius=None, com_inertia_radius=None)
    shown = radii(plot.plot_halos(pos, foreign, 4.0))[::9]  # each is repeated across the boundary
    np.testing.assert_allclose([80, 10] / (4 / 3 * np.pi * shown**3), 200 * 1000 / 4**3, rtol=1e-6)
    known, words = plot.with_radii(foreign, 1000, 4.0, {"r200c": np.asarray([0.3, 0.0]), "r500c": np.ones(2)})
    assert words == "r200c"
    np.testing.assert_allclose(known.max_radius, [0.3, shown[1]], rtol=1e-6)
    places = plot.plot_density(pos, catalogue=foreign).axes[0]  # without a box
    assert not places.collections
    np.testing.assert_array_equal(places.lines[0].get_xydata(), pos[:2, :2])


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_formats(tmp_path, suffix, begins) -> None:
    pos = np.random.default_rng(0).random((500, 3))
    path = tmp_path / f"halos.{suffix}"
    plot.plot_halos(pos, catalogue(pos[:2], [30, 20], 0.1), 1.0, path, length_unit="Mpc", mass_unit="Msun", title="t")
    assert path.read_bytes().startswith(begins)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_density_is_the_histogram_of_wrapped_positions() -> None:
    pos = np.random.default_rng(1).uniform(-0.3, 1.3, (2000, 3))
    figure = plot.plot_halos(pos, catalogue(pos[:0], [], 0.1), 1.0, axes=(2, 0), bins=16)
    drawn = figure.axes[0].images[0].get_array()
    expected = np.histogram2d(pos[:, 2] % 1, pos[:, 0] % 1, bins=16, range=((0, 1), (0, 1)))[0].T
    np.testing.assert_allclose(drawn, np.maximum(expected, 0.3) / expected.mean())
    assert figure.axes[0].get_xlabel() == "z"
    assert figure.axes[0].get_ylabel() == "x"


def test_open_box_spans_the_particles_and_a_mixed_one_both() -> None:
    pos = np.random.default_rng(2).normal(100, 5, (300, 2))
    extent = plot.plot_halos(pos, catalogue(pos[:1], [9], 1.0), None).axes[0].images[0].get_extent()
    assert extent[0] < pos[:, 0].min()
    assert extent[1] > pos[:, 0].max()
    assert extent[3] > pos[:, 1].max()
    mixed = plot.plot_halos(pos, catalogue(pos[:1], [9], 1.0), (0.0, 200.0)).axes[0].images[0]
    assert mixed.get_extent()[2:] == [0, 200]
    assert mixed.get_array().sum() > 0


def test_circles_of_the_largest_groups_cross_the_boundary() -> None:
    centres = np.asarray([[0.01, 0.5], [0.4, 0.5], [0.7, 0.5]])
    pos = np.random.default_rng(3).random((200, 2))
    figure = plot.plot_halos(pos, catalogue(centres, [30, 20, 10], 0.05), 1.0, num_circles=2)
    drawn = circles(figure)
    assert len(drawn) == 2 * 9
    for centre in ([0.01, 0.5], [1.01, 0.5], [0.4, 0.5], [0.4, -0.5]):
        assert np.isclose(drawn, centre, atol=1e-6).all(axis=1).any()
    assert not np.isclose(drawn, [0.7, 0.5], atol=1e-6).all(axis=1).any()
    assert figure.axes[0].get_xlim() == (0, 1)


@pytest.mark.parametrize(("with_mass", "label"), [(True, "group mass [Msun]"), (False, "group particles")])
def test_sizes_are_cumulative(with_mass, label) -> None:
    pos = np.random.default_rng(4).random((200, 2))
    figure = plot.plot_halos(pos, catalogue(pos[:3], [20, 90, 40], 0.1, with_mass), 1.0, mass_unit="Msun")
    (line,) = figure.axes[1].lines
    factor = 2 if with_mass else 1
    np.testing.assert_array_equal(line.get_xydata(), [[90 * factor, 1], [40 * factor, 2], [20 * factor, 3]])
    assert figure.axes[1].get_xlabel() == label
    assert figure.axes[1].get_title() == "3 groups"


def test_what_fof_returns_can_be_drawn(tmp_path) -> None:
    part, boxsize = ics.cosmo_2d_sample()
    partf, cata = fof_and_catalogue(part, rlink=0.15625, boxsize=boxsize)
    figure = plot.plot_halos(partf.pos, cata, boxsize, tmp_path / "a.png")
    assert len(circles(figure)) == 30 * 9
    assert figure.axes[1].get_title() == "98 groups"


@pytest.mark.parametrize("n", [0, 1])
def test_hardly_any_particles(tmp_path, n) -> None:
    part = PosMass(pos=np.full((n, 3), 7.0, np.float32))
    for boxsize in (0.0, 10.0):
        plot.plot_halos(part.pos, catalogue(np.zeros((0, 3)), [], 1.0), boxsize, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize("axes", [(0, 0), (0, 3), (-1, 1)])
def test_wrong_dimensions(axes) -> None:
    pos = np.zeros((5, 3))
    with pytest.raises(ValueError, match="dimensions"):
        plot.plot_halos(pos, catalogue(pos[:1], [5], 1.0), axes=axes)


@pytest.mark.parametrize("name", ["a.docx", "a", "missing/a.png"])
def test_outputs_that_cannot_be_written(tmp_path, name) -> None:
    pos = np.zeros((5, 3))
    with pytest.raises(io.OutputError, match="a"):
        plot.plot_halos(pos, catalogue(pos[:1], [5], 1.0), 1.0, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_is_imported_late_and_missed_in_words(monkeypatch) -> None:
    code = "import sys, jztree_utils.plot; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    monkeypatch.delitem(sys.modules, "jztree_utils.plot._notebook_figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'jztree\[plot\]'"):
        plot.plot_halos(np.zeros((5, 3)), catalogue(np.zeros((1, 3)), [5], 1.0))


def test_no_state_of_pyplot(tmp_path) -> None:
    code = f"""
import sys
from jztree.fof import fof_and_catalogue
from jztree_utils import ics, plot
part, boxsize = ics.cosmo_2d_sample()
partf, cata = fof_and_catalogue(part, 0.15, boxsize)
plot.plot_halos(partf.pos, cata, boxsize, {str(tmp_path / "a.png")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    assert (tmp_path / "a.png").exists()
