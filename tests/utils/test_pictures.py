"""Pictures other than that of haloes: their content, and refused input."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jztree.data import FofCatalogue
from jztree_utils import io, plot
from jztree_utils import mass_function as mf

matplotlib = pytest.importorskip("matplotlib")


def catalogue(count: np.ndarray, each: float | None = 2.0) -> FofCatalogue:
    zero = np.zeros(len(count))
    return FofCatalogue(
        ngroups=len(count),
        count=count.astype(np.int32),
        offset=zero,
        com_pos=np.zeros((len(count), 3)),
        com_inertia_radius=zero,
        max_radius=zero,
        mass=None if each is None else each * count,
    )


def errorbars(ax: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return abscissa, value, lower and upper end of the data drawn by `Axes.errorbar`."""
    (drawn,) = ax.containers
    ends = np.asarray([segment[:, 1] for segment in drawn.lines[2][0].get_segments()])
    return drawn.lines[0].get_xdata(), drawn.lines[0].get_ydata(), ends[:, 0], ends[:, 1]


def test_density_weighs_by_mass() -> None:
    random = np.random.default_rng(1)
    pos, mass = random.random((2000, 3)), random.random(2000)
    drawn = plot.plot_density(pos, 1.0, mass=mass, bins=8).axes[0].images[0].get_array()
    expected = np.histogram2d(pos[:, 0], pos[:, 1], bins=8, range=((0, 1), (0, 1)), weights=mass)[0].T
    np.testing.assert_allclose(drawn, expected / expected.mean())
    with pytest.raises(ValueError, match="mass has shape"):
        plot.plot_density(pos, 1.0, mass=mass[:5])


@pytest.mark.parametrize("drawn", ["sizes", "masses"])
def test_group_sizes(drawn: str, tmp_path: Path) -> None:
    groups = catalogue(np.array([20, 90, 40]), None if drawn == "sizes" else 2.0)
    figure = plot.plot_group_sizes(groups, tmp_path / "a.pdf", mass_unit="Msun")
    factor = 1 if drawn == "sizes" else 2
    np.testing.assert_array_equal(
        figure.axes[0].lines[0].get_xydata(), np.c_[factor * np.array([90, 40, 20]), [1, 2, 3]]
    )
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    labels = [tick.label1.get_text() for tick in figure.axes[0].xaxis.get_major_ticks()]  # not powers of ten
    assert "50" in labels


def test_mass_function_counts_every_group_once_with_poisson_errors() -> None:
    count = np.random.default_rng(0).geometric(0.01, 3000) + 19
    ax = plot.plot_mass_function(catalogue(count), (10.0, 20.0, 5.0), length_unit="Mpc", mass_unit="Msun").axes[0]
    mass, density, lower, upper = errorbars(ax)
    # Bin edges are half-way between possible numbers of particles.
    edges = np.unique(np.round(count.min() * 10 ** (0.2 * np.arange(40)))) - 0.5
    counted = np.histogram(count, edges)[0]
    edges, counted = edges[: counted.nonzero()[0][-1] + 2], counted[: counted.nonzero()[0][-1] + 1]
    assert counted.sum() == 3000
    np.testing.assert_allclose(mass, 2 * np.sqrt(edges[1:] * edges[:-1])[counted > 0])
    scale = 1 / 1000 / np.diff(np.log10(edges))
    for drawn, numbers in zip((density, lower, upper), (counted, *mf.poisson_interval(counted)), strict=True):
        np.testing.assert_allclose(drawn, (numbers * scale)[counted > 0])
    assert ax.get_xlabel() == "group mass $M$ [Msun]"


@pytest.mark.parametrize("particle_mass", [None, 1.0, 1e11, 1e15])
def test_no_group_is_lost_from_the_mass_function(particle_mass: float | None) -> None:
    """Also if the range of masses is a whole number of bins, or the masses are far below that of a particle."""
    random = np.random.default_rng(1)
    for number in range(40):
        low, bins = 10 ** random.uniform(-3, 15), number // 4
        mass = low * 10 ** (0.2 * np.append(random.uniform(0, bins, 20), [0, bins]))
        if particle_mass is not None and number % 2:
            mass = particle_mass * np.ceil(mass / low)
        ax = plot.plot_mass_function(mass, 1.0, particle_mass=particle_mass).axes[0]
        assert ax.get_legend().get_texts()[0].get_text() == "22 groups"
    ax = plot.plot_mass_function([], 1.0).axes[0]
    assert ax.get_legend().get_texts()[0].get_text() == "0 groups"


@pytest.mark.parametrize("particle_mass", [None, 1.0])
def test_mass_function_of_one_mass_shows_its_bin(particle_mass: float | None) -> None:
    for mass in (17.0, 40.0, 100.0):
        low, high = plot.plot_mass_function([mass], 1.0, particle_mass=particle_mass).axes[0].get_xlim()
        assert mass / 2 < low < mass < high < 2 * mass


def test_groups_drawn_from_the_reference_have_ratio_one() -> None:
    cosmology, side, edges = mf.Cosmology(), 400.0, np.geomspace(1e13, 1e15, 2001)
    middle = np.sqrt(edges[1:] * edges[:-1])
    expected = mf.mass_function(cosmology, middle, 0.5, "tinker") * np.diff(np.log(edges)) * side**3
    mass = np.repeat(middle, np.random.default_rng(2).poisson(expected)) / 1e10
    figure = plot.plot_mass_function(
        mass, 1000 * side, units=mf.Units(1e-3, 1e10), cosmology=cosmology, redshift=0.5, model="tinker"
    )
    above, below = figure.axes
    _, ratio, lower, upper = errorbars(below)
    assert np.mean((lower < 1) & (upper > 1)) > 0.4
    assert ratio[0] == pytest.approx(1, abs=0.05)
    assert "Tinker" in above.get_legend_handles_labels()[1][0]


def test_mass_functions_of_several_redshifts_have_their_own_curves() -> None:
    cosmology, mass = mf.Cosmology(), np.geomspace(1e12, 1e14, 40)
    options = {"units": mf.Units(1.0, 1.0), "cosmology": cosmology}
    sets, redshifts = [mass, mass[:10], []], [0.0, 2.0, 5.0]
    figure = plot.plot_mass_function(sets, 50.0, redshift=redshifts, **options)
    above, below = figure.axes
    labels = above.get_legend_handles_labels()[1]
    assert labels[1:] == ["redshift 0: 40 groups", "redshift 2: 10 groups", "redshift 5: 0 groups"]
    assert "Warren" in labels[0]
    for curve, redshift, container, groups in zip(above.lines[:2], redshifts, below.containers, sets, strict=False):
        grid, values = curve.get_data()
        np.testing.assert_allclose(values, mf.mass_function(cosmology, grid, redshift) * np.log(10))
        alone = plot.plot_mass_function(groups, 50.0, redshift=redshift, **options).axes[1].containers[0]
        np.testing.assert_allclose(container[0].get_ydata(), alone[0].get_ydata())
    with pytest.raises(ValueError, match="groups has 2 sets and redshift 1 numbers; give one redshift per set"):
        plot.plot_mass_function([mass, mass], 50.0)


def test_reference_for_other_masses_is_labelled() -> None:
    options = {"units": mf.Units(1.0, 1e10), "cosmology": mf.Cosmology()}
    for groups, definition, model, marked in (
        (catalogue(np.array([30, 20])), None, "tinker", True),
        (catalogue(np.array([30, 20])), None, "warren", False),
        (np.array([3e3, 2e3]), "m200c", "tinker", True),
        (np.array([3e3, 2e3]), "m200m", "tinker", False),
        (np.array([3e3, 2e3]), None, "tinker", False),
    ):
        figure = plot.plot_mass_function(groups, 50.0, definition=definition, model=model, **options)
        label = figure.axes[0].get_legend_handles_labels()[1][0]
        assert (", for other masses\n" in label) == marked, label


def test_invalid_mass_functions() -> None:
    groups = catalogue(np.array([30, 20]))
    with pytest.raises(ValueError, match="volume"):
        plot.plot_mass_function(groups, 0.0)
    with pytest.raises(ValueError, match="no masses"):
        plot.plot_mass_function(catalogue(np.array([30]), None), 1.0)
    for wrong in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match=f"mass of group 1 is {wrong:g}; masses must be positive and finite"):
            plot.plot_mass_function(np.array([1.0, wrong]), 1.0)
        with pytest.raises(ValueError, match=f"particle_mass is {wrong}; it must be positive and finite"):
            plot.plot_mass_function(np.array([1.0, 2.0]), 1.0, particle_mass=wrong)
    with pytest.raises(ValueError, match="mass of group 0 is nan"):
        plot.plot_mass_function(catalogue(np.array([30, 20]), np.nan), 1.0)
    with pytest.raises(ValueError, match=r"boxsize is inf, .* give positive, finite lengths"):
        plot.plot_mass_function(groups, np.inf)
    assert len(plot.plot_mass_function(catalogue(np.zeros(0)), 1.0, cosmology=mf.Cosmology()).axes) == 1
    single = plot.plot_mass_function(catalogue(np.array([30])), 1.0)
    assert len(errorbars(single.axes[0])[0]) == 1


@pytest.mark.parametrize("ndim", [2, 3])
def test_random_distances_match_the_expectation(ndim: int) -> None:
    from scipy.spatial import cKDTree  # noqa: PLC0415

    pos = np.random.default_rng(3).random((20000, ndim))
    distances = cKDTree(pos, boxsize=1.0).query(pos, 9)[0]
    ax = plot.plot_neighbour_distances(distances, 1.0, ndim=ndim, length_unit="Mpc").axes[0]
    result = [line for line in ax.lines if line.get_linestyle() == "-"]
    expected = [line for line in ax.lines if line.get_linestyle() == "--" and len(line.get_xdata())]
    assert [line.get_label() for line in result] == ["1", "2", "4", "8"]
    for solid, dashed in zip(result, expected, strict=True):
        x, share = solid.get_data()
        step = np.log(x[1] / x[0])
        assert share.sum() * step == pytest.approx(1)
        r, density = dashed.get_data()
        assert np.trapezoid(density, np.log(r)) == pytest.approx(1, abs=2e-3)
        # The scatter of particles per bin is slightly larger than if they were independent.
        counted, due = (20000 * step * values for values in (share, np.interp(x, r, density)))
        np.testing.assert_array_less(np.abs(counted - due), 6 * np.sqrt(due + 3))
    assert ax.get_xlabel() == "distance $r$ [Mpc]"


def test_distances_without_expectation_or_scatter() -> None:
    lattice = np.repeat([[0.0, 1.0, 1.0]], 50, axis=0)
    ax = plot.plot_neighbour_distances(lattice).axes[0]
    assert [line.get_linestyle() for line in ax.lines] == ["-", "-"]
    plot.plot_neighbour_distances(np.zeros((5, 3)))
    with pytest.raises(ValueError, match="in addition to the particle itself"):
        plot.plot_neighbour_distances(np.zeros((5, 1)))


def test_notebooks_display_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0)))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.append))
    figure = plot.plot_group_sizes(catalogue(np.array([20, 90])))
    plot.show(figure)
    assert shown == [figure]
    data, form = figure._repr_png_()  # the method that notebooks call
    assert (data[:4], form) == (b"\x89PNG", {"width": round(figure.get_figwidth() * 96)})


def test_numbers_of_groups_are_drawn_from_0_on(tmp_path: Path) -> None:
    figure = plot.plot_group_numbers([0.1, 0.2, 0.3], [4, 9, 7], tmp_path / "a.pdf", npart_min=20)
    (ax,) = figure.axes
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [(0.1, 4), (0.2, 9), (0.3, 7)])
    assert ax.get_ylim()[0] == 0
    assert ax.get_ylabel() == "groups of at least 20 particles"
    assert (tmp_path / "a.pdf").stat().st_size > 1_000


def test_numbers_of_groups_of_another_shape_raise() -> None:
    with pytest.raises(ValueError, match=r"b has shape \(3,\), and groups \(2,\)"):
        plot.plot_group_numbers([0.1, 0.2, 0.3], [4, 9])


def test_show_opens_a_window_or_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot  # noqa: PLC0415
    from matplotlib.backend_bases import FigureManagerBase  # noqa: PLC0415

    figure = plot.plot_group_sizes(catalogue(np.array([20, 90])))
    done: list[str] = []
    pyplot.switch_backend("agg")
    with pytest.raises(io.OutputError, match="backend agg has no windows"):
        plot.show(figure)

    class Manager(FigureManagerBase):
        def show(self) -> None:
            done.append("shown")

        @classmethod
        def start_main_loop(cls) -> None:
            done.append("waited")

    class Canvas:
        manager_class = Manager

        @classmethod
        def new_manager(cls, shown: Any, num: int) -> Manager:
            assert shown is figure
            return Manager(shown.canvas, num)

    monkeypatch.setattr(pyplot, "close", lambda own: done.append("closed"))
    monkeypatch.setattr(pyplot, "figure", lambda: SimpleNamespace(canvas=Canvas()))
    plot.show(figure)
    assert done == ["closed", "shown", "waited"]
