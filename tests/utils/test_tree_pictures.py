"""Pictures of merger trees, mass histories and profiles."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jztree as jz
from jztree_utils import plot
from jztree_utils.trees import LinkedOutput, MergerTrees, build_trees

pytest.importorskip("matplotlib")


@pytest.fixture
def trees() -> MergerTrees:
    """A main branch of four outputs, a branch of two that is lost for an output, and another one of two."""
    columns = [([9.0, 4, 1], [0, 1, 2]), ([10, 5, 1], [0, 0, 0]), ([12], [0]), ([20], [-1])]
    outputs = [
        LinkedOutput(
            snapshot=3 + i, group=np.zeros(len(mass), int), mass=np.asarray(mass), descendant=np.asarray(links)
        )
        for i, (mass, links) in enumerate(columns)
    ]
    outputs[1] = replace(outputs[1], skips=np.array([False, True, False]))
    return build_trees(outputs)


def test_each_branch_is_a_column_and_each_link_a_line(trees: MergerTrees) -> None:
    ax = plot.plot_merger_tree(trees, 0, redshifts={3: 2.0, 4: 1.0, 5: 0.5, 6: 0.0}).axes[0]
    lines, markers = ax.collections[:2]
    segments = np.asarray(lines.get_segments())
    assert len(segments) == len(trees) - 1
    ends = {(tuple(start), tuple(end)) for start, end in segments.tolist()}
    assert ((0, 3), (0, 4)) in ends
    assert ((2, 4), (0, 6)) in ends  # skips an output
    assert ax.get_xlabel() == "3 branches"
    areas = markers.get_sizes()
    np.testing.assert_allclose(areas / areas.max(), trees.mass / 20)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["2", "1", "0.5", "0"]


def test_small_branches_are_left_out_with_the_branches_that_merge_into_them(trees: MergerTrees) -> None:
    figures = [plot.plot_merger_tree(trees, 0, min_mass=mass).axes[0] for mass in (4, 100)]
    assert [ax.get_xlabel() for ax in figures] == ["2 branches", "1 branches"]


def test_mass_histories_follow_main_branches(trees: MergerTrees, tmp_path: Path) -> None:
    figure = plot.plot_mass_histories(trees, [0], tmp_path / "history.png", labels=["halo"])
    (line,) = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_xydata(), [[6, 20], [5, 12], [4, 10], [3, 9]])
    (line,) = plot.plot_mass_histories(trees, [0], redshifts={3: 2.0, 4: 1.0, 5: 0.5, 6: 0.0}).axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), [1, 1.5, 2, 3])
    assert (tmp_path / "history.png").stat().st_size > 1000


def test_profiles_show_only_shells_with_particles() -> None:
    pos = np.array([[0.1, 0], [0.3, 0], [0, 0.35]], np.float32)
    profiles = jz.radial_profiles(pos, [0.0, 0.05, 0.2, 0.4], queries=np.zeros((1, 2), np.float32))
    axes = plot.plot_profiles(profiles, labels=["centre"], length_unit="Mpc", mass_unit="Msun").axes
    density, mass, velocity = (ax.lines[0].get_xydata() for ax in axes)
    np.testing.assert_allclose(density[:, 0], np.sqrt([0.05 * 0.2, 0.2 * 0.4]), rtol=1e-6)
    np.testing.assert_allclose(mass, [[0.2, 1], [0.4, 3]], rtol=1e-6)
    np.testing.assert_allclose(velocity[:, 1], np.sqrt([1 / 0.2, 3 / 0.4]), rtol=1e-6)
    assert axes[0].get_ylabel() == "density [Msun / (Mpc)$^3$]"


def test_invalid_arguments_raise(trees: MergerTrees) -> None:
    with pytest.raises(IndexError, match="row is 8; it must be from 0 to 7"):
        plot.plot_merger_tree(trees, len(trees))
    with pytest.raises(IndexError, match="row is -1"):
        plot.plot_mass_histories(trees, [-1])
    with pytest.raises(ValueError, match="labels has 1 names for 2 rows"):
        plot.plot_mass_histories(trees, [0, 1], labels=["a"])
    profiles = jz.radial_profiles(np.zeros((2, 2), np.float32), [0.1, 0.2], queries=np.zeros((1, 2), np.float32))
    with pytest.raises(ValueError, match="labels has 2 names, but profiles has 1 centres"):
        plot.plot_profiles(profiles, labels=["a", "b"])
