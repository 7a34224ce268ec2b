"""Pictures: their content, their formats, and refused input."""

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jztree.data import FofCatalogue, PosMass
from jztree.fof import fof_and_catalogue
from jztree_utils import ics, io, plot
from jztree_utils.correlation import Correlation, power_law

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
    """Return the centres of the drawn circles."""
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
    np.testing.assert_array_equal(known.com_pos, pos[:2])
    circles = {"r200c": np.ones(2), "centre_pos": pos[2:4]}  # centres of the circles
    np.testing.assert_array_equal(plot.with_radii(foreign, 1000, 4.0, circles)[0].com_pos, pos[2:4])
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


@pytest.mark.long
def test_fof_results_can_be_drawn(tmp_path) -> None:
    pos, boxsize = ics.cosmo_2d_sample(), ics.SAMPLE_2D_BOXSIZE
    grouped, cata = fof_and_catalogue(pos, rlink=0.15625, boxsize=boxsize)
    figure = plot.plot_halos(grouped, cata, boxsize, tmp_path / "a.png")
    assert len(circles(figure)) == 30 * 9
    assert figure.axes[1].get_title() == "98 groups"


@pytest.mark.parametrize("n", [0, 1])
def test_few_particles(tmp_path, n) -> None:
    part = PosMass(pos=np.full((n, 3), 7.0, np.float32))
    for boxsize in (0.0, 10.0):
        plot.plot_halos(part.pos, catalogue(np.zeros((0, 3)), [], 1.0), boxsize, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("height", [0.0, 1e-9])
def test_particles_on_a_line_have_a_picture_of_some_height(tmp_path, n, height) -> None:
    pos = np.random.default_rng(1).random((n, 2)) * (1, height)
    drawn = plot.plot_density(pos, path=tmp_path / "a.png", smooth=8).axes[0].images[0]
    low, high, bottom, top = drawn.get_extent()
    assert 0.01 < (top - bottom) / (high - low) < 100
    assert np.isfinite(drawn.get_array()).all()


def test_no_particle_in_the_picture(tmp_path) -> None:
    pos, mass = np.random.default_rng(1).random((30, 3)), np.ones(30)
    for figure in (
        plot.plot_density(pos, 3.0, tmp_path / "a.png", mass=mass, slab=(2, 3), mass_unit="Msun"),
        plot.plot_halo(pos, np.full(3, 2.0), {"r200c": 0.1}, 3.0, tmp_path / "b.png", mass=mass),
    ):
        assert np.ptp(drawn_of(figure)) == 0


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


@pytest.mark.long
def test_matplotlib_is_imported_late_and_its_absence_raises(monkeypatch) -> None:
    code = "import sys, jztree_utils.plot; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    monkeypatch.delitem(sys.modules, "jztree_utils.plot._notebook_figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'jztree-native\[plot\]'"):
        plot.plot_halos(np.zeros((5, 3)), catalogue(np.zeros((1, 3)), [5], 1.0))


@pytest.mark.long
def test_pyplot_state_is_not_changed(tmp_path) -> None:
    code = f"""
import sys
from jztree.fof import fof_and_catalogue
from jztree_utils import ics, plot
pos, boxsize = ics.cosmo_2d_sample(), ics.SAMPLE_2D_BOXSIZE
grouped, cata = fof_and_catalogue(pos, 0.15, boxsize)
plot.plot_halos(grouped, cata, boxsize, {str(tmp_path / "a.png")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    assert (tmp_path / "a.png").exists()


# Slabs, smoothing, and one halo


def drawn_of(figure: Any) -> np.ndarray:
    return np.asarray(figure.axes[0].images[0].get_array()).T


@pytest.mark.parametrize(
    ("slab", "held"), [((2.0, 3.5), lambda z: (z >= 2) & (z <= 3.5)), ((9.0, 1.0), lambda z: (z >= 9) | (z <= 1))]
)
def test_slab_contains_the_particles_within_its_limits(slab, held) -> None:
    pos = np.random.default_rng(4).random((5000, 3)) * 10
    cata = catalogue(pos[:40], np.arange(80, 40, -1), 0.1)
    figure = plot.plot_density(pos + np.array([0, 0, 20]), 10.0, slab=slab, bins=8, catalogue=cata, num_circles=99)
    inside = held(pos[:, 2])
    counts = np.histogram2d(*pos[inside, :2].T, bins=8, range=((0, 10), (0, 10)))[0]
    np.testing.assert_allclose(drawn_of(figure), counts / counts.mean(), rtol=1e-6)
    shown = circles(figure)
    np.testing.assert_allclose(shown[4::9], pos[:40][inside[:40], :2], atol=1e-6)


def legend_of(figure: Any) -> str:
    (text,) = figure.axes[0].get_legend().get_texts()
    return " ".join(text.get_text().split())


def test_titles_state_slab_and_redshift_and_the_legend_explains_circles() -> None:
    pos = np.random.default_rng(4).random((50, 3)) * 10
    groups = catalogue(pos[:4], [9, 8, 7, 6], 0.1)
    options: dict[str, Any] = {"redshift": 0.5, "length_unit": "Mpc/h"}
    figure = plot.plot_density(pos, 10.0, catalogue=groups, slab=(-1, 12), axes=(0, 2), title="run", **options)
    assert figure.axes[0].get_title() == "run\nslab from -1 to 12 Mpc/h along y, redshift 0.5"
    assert legend_of(figure) == "4 largest groups radius: distance of the farthest member"
    figure = plot.plot_halos(pos, groups, 10.0, num_circles=1, circles="r200m", **options)
    assert (figure.axes[0].get_title(), legend_of(figure)) == ("redshift 0.5", "largest group radius: r200m")
    figure = plot.plot_density(pos, 0.0, catalogue=replace(groups, max_radius=None))
    assert (figure.axes[0].get_title(), legend_of(figure)) == ("", "4 largest groups")
    assert plot.plot_density(pos, 0.0, catalogue=groups, num_circles=0).axes[0].get_legend() is None
    assert plot.plot_halo(pos, pos[0], {"r": 3}, 10.0, **options).axes[0].get_title() == "redshift 0.5"


def test_a_smoothed_particle_is_a_gaussian_and_mass_is_kept() -> None:
    """Two particles at distance 2 get a width of half of that, also across the boundary."""
    pos = np.array([[0.05, 5.0], [2.05, 5.0]])
    figure = plot.plot_density(
        pos, 10.0, smooth=2, bins=200, mass=np.array([1.0, 3.0]), mass_unit="Msun", length_unit="Mpc"
    )
    result = drawn_of(figure)
    x = (np.arange(200) + 0.5) * 0.05
    separation = (x[:, None] - pos[:, 0] + 5) % 10 - 5
    profile = np.exp(-(separation**2) / 2) @ [1.0, 3.0]
    middle, held = result[:, 100], profile > 0.1
    # The possible widths differ by factors of the root of two, so the Gaussian may be a fifth wider or narrower.
    slope = np.polyfit(np.log(profile[held]), np.log(middle[held]), 1)[0]
    assert 0.7 < slope < 1.45
    assert np.corrcoef(np.log(middle[held]), np.log(profile[held]))[0, 1] > 0.97
    assert result.sum() * 0.05**2 == pytest.approx(4.0, rel=0.05)
    assert figure.axes[1].get_ylabel() == "surface density [Msun / (Mpc)$^2$]"


def test_smoothing_of_a_periodic_box_keeps_the_mean() -> None:
    pos = np.random.default_rng(6).random((4000, 3))
    result = drawn_of(plot.plot_density(pos, 1.0, smooth=16, bins=64))
    assert result.mean() == pytest.approx(1, rel=0.01)
    assert result.std() < 0.6 * drawn_of(plot.plot_density(pos, 1.0, bins=64)).std()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_particles_are_smoothed(n) -> None:
    drawn = drawn_of(plot.plot_density(np.random.default_rng(0).random((n, 3)), 1.0, smooth=8))
    assert np.all(np.isfinite(drawn) & (drawn >= 0))
    assert plot.plot_halo(np.zeros((n, 3)), np.zeros(3), {"r200c": 1.0}).axes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slab": (3, 3)}, "The slab is from 3 to 3"),
        ({"slab": (3, 1), "boxsize": None}, "The slab is from 3 to 1; give two numbers, the smaller one first."),
        ({"slab": (0, np.nan)}, "The slab is from 0 to nan"),
        ({"pos": np.zeros((4, 2)), "slab": (0, 1)}, "pos has 2 dimensions, but a slab needs a third one"),
        ({"smooth": 1}, "smooth is 1; give 0, or at least 2 neighbours."),
        ({"mass_unit": "Msun"}, "mass_unit is Msun, but the masses of the particles are missing"),
    ],
)
def test_invalid_density_options_raise(options, words) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        plot.plot_density(**({"pos": np.zeros((4, 3)), "boxsize": 10.0} | options))


def test_subhaloes_are_dotted_circles_at_their_nearest_images() -> None:
    pos = np.random.default_rng(0).random((50, 3)) * 10
    places, radii = [[9.5, 0.2, 5], [0.4, 0.4, 4]], [0.2, 0.1]
    figure = plot.plot_halo(pos, [0.1, 9.9, 5], {"r": 2.0}, 10.0, subhaloes=(places, radii))
    circles = figure.axes[0].patches[:2]
    np.testing.assert_allclose([circle.center for circle in circles], [[-0.6, 0.3], [0.3, 0.5]])
    assert [circle.radius for circle in circles] == radii
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["subhaloes", "r = 2"]
    with pytest.raises(ValueError, match=r"subhaloes has positions of shape \(2, 3\) and radii of shape \(1,\)"):
        plot.plot_halo(pos, [0, 0, 0], {"r": 2.0}, 10.0, subhaloes=(places, radii[:1]))


def test_one_halo_has_the_particles_around_it_and_its_spheres() -> None:
    random = np.random.default_rng(8)
    pos = np.concatenate([np.array([0.1, 9.9, 5]) + random.normal(0, 0.2, (500, 3)), random.random((500, 3)) * 10]) % 10
    spheres = {"r200c": 0.5, "r500c": 0.3, "r2500c": 0.0, "rvir": np.nan}
    figure = plot.plot_halo(pos, [0.1, 9.9, 5], spheres, 10.0, mass=2.0, mass_unit="Msun")
    ax = figure.axes[0]
    separation = (pos - [0.1, 9.9, 5] + 5) % 10 - 5
    inside = np.count_nonzero((np.abs(separation) <= 0.65).all(axis=1))
    total = drawn_of(figure).sum() * (1.3 / 300) ** 2
    assert 0.8 * 2 * inside < total <= 1.1 * 2 * inside  # Gaussians extend outside the picture
    assert {patch.get_label(): patch.radius for patch in ax.patches} == {"r500c = 0.3": 0.3, "r200c = 0.5": 0.5}
    np.testing.assert_allclose(ax.images[0].get_extent(), [-0.65, 0.65, -0.65, 0.65])
    assert ax.get_xlabel() == "x from the centre"
    with pytest.raises(ValueError, match="no positive, finite radius"):
        plot.plot_halo(pos, np.zeros(3), {"r200c": 0.0})


@pytest.mark.parametrize("weighted", [False, True])
def test_colours_of_a_halo_do_not_depend_on_the_frame(weighted: bool) -> None:
    """They are the length of a column of mean density; without a box, particles or masses per area."""
    random = np.random.default_rng(8)
    pos = np.concatenate([random.random((100000, 3)) * 20, 10 + random.normal(0, 0.5, (50000, 3))])
    mass = random.uniform(1, 3, len(pos)) if weighted else None
    weight = np.ones(len(pos)) if mass is None else mass
    for box, mean, label in (
        (20.0, weight.sum() / 20**3, "projected density / mean density [Mpc]"),
        (None, 1.0, f"{'mass' if weighted else 'particles'} per area [(Mpc)$^{{-2}}$]"),
    ):
        for radius in (2.0, 4.0):
            figure = plot.plot_halo(pos, [10, 10, 10], {"r": radius}, box, mass=mass, length_unit="Mpc")
            half = 1.3 * radius
            low, high = (int(150 + 150 * side * 0.5 / half) for side in (-1, 1))
            inside = (np.abs(pos - 10) <= [0.5, 0.5, half]).all(axis=1)
            expected = weight[inside].sum() / mean  # in an area of 1
            np.testing.assert_allclose(drawn_of(figure)[low:high, low:high].mean(), expected, rtol=0.06)
            assert figure.axes[1].get_ylabel() == label
    flat = plot.plot_halo(pos[:, :2], [10, 10], {"r": 4.0}, 20.0, length_unit="Mpc")
    assert flat.axes[1].get_ylabel() == "projected density / mean density"


def labels_of(axis: Any) -> list[str]:
    axis.figure.canvas.draw()
    return [label_text.get_text() for label_text in axis.get_ticklabels(which="both") if label_text.get_text()]


@pytest.mark.parametrize("high", [0.5, 2.0, 9.0, 25.0])
def test_tick_labels_of_short_ranges_are_few_and_plain(high: float) -> None:
    edges = np.geomspace(0.3, high, 11)
    figure = plot.plot_correlation(Correlation(edges=edges, value=9e5 / edges[1:], pairs=np.full(10, 10**6)))
    ax = figure.axes[0]
    for labels in (labels_of(ax.xaxis), labels_of(ax.yaxis)):
        assert 2 <= len(labels) <= 14
    assert not any("10^" in column for column in labels_of(ax.xaxis))
    boxes = sorted(
        (column.get_window_extent() for column in ax.xaxis.get_ticklabels(which="both") if column.get_text()),
        key=lambda box: box.x0,
    )
    for column, reference in itertools.pairwise(boxes):
        assert column.x1 < reference.x0


STATISTICS: dict[str, tuple[dict[str, Any], str, str]] = {
    "xi": ({}, "distance $r$ [Mpc]", r"$\xi$"),
    "wp": ({"statistic": "wp"}, "distance across $r_p$ [Mpc]", "$w_p$ [Mpc]"),
    "w_theta": ({"statistic": "w_theta"}, r"angle $\theta$ [degrees]", "$w$"),
    "multipoles": (
        {"statistic": "multipoles", "value": np.array([[3.0, 1.0], [-1.0, 0.5]]), "ells": (0, 4)},
        "distance $s$ [Mpc]",
        r"$s^2\,\xi_\ell$ [(Mpc)$^2$]",
    ),
}


@pytest.mark.parametrize("statistic", STATISTICS)
def test_correlations_have_the_labels_of_their_statistic(statistic: str) -> None:
    options, xlabel, ylabel = STATISTICS[statistic]
    fields = {"edges": np.array([1.0, 2, 4]), "value": np.array([3.0, 1.0]), "pairs": np.array([8, 8])} | options
    result = Correlation(**fields)
    ax = plot.plot_correlation(result, length_unit="Mpc").axes[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == (xlabel, ylabel)
    texts = [] if ax.get_legend() is None else [label_text.get_text() for label_text in ax.get_legend().get_texts()]
    if statistic == "multipoles":
        assert texts == [r"$\ell = 0$", r"$\ell = 4$"]
        drawn = [container[0].get_ydata() for container in ax.containers]
        np.testing.assert_allclose(drawn, result.centre**2 * result.value)
    else:
        assert len(texts) == (statistic != "wp")  # a power law
    if statistic in ("wp", "multipoles"):
        with pytest.raises(ValueError, match=f"correlation is {statistic}; a power law"):
            power_law(result)
    wrong = replace(result, value=np.ones((1, 1, 2)))
    with pytest.raises(ValueError, match=r"with values of shape \(1, 1, 2\); they must be"):
        plot.plot_correlation(wrong)


@pytest.mark.parametrize(("cross", "pairs"), [(False, 4), (True, 8)])
def test_errors_of_correlations_are_those_of_independent_pairs(cross: bool, pairs: int) -> None:
    """A cross-correlation has each pair once, otherwise each is counted in both orders."""
    result = Correlation(edges=np.array([1.0, 2, 4]), value=np.array([3.0, 1.0]), pairs=np.array([8, 8]), cross=cross)
    ((_, _, (bars,)),) = plot.plot_correlation(result).axes[0].containers
    half = [np.ptp(segment[:, 1]) / 2 for segment in bars.get_segments()]
    np.testing.assert_allclose(half, [4 / np.sqrt(pairs), 2 / np.sqrt(pairs)])
