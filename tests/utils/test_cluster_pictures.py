"""Pictures of dendrograms and condensed trees."""

from typing import Any

import numpy as np
import pytest

import jztree as jz
from jztree_utils import plot
from jztree_utils.hdbscan import Clusters, hdbscan

pytest.importorskip("matplotlib")

CLUMPS = {"sizes": (60, 200, 90), "centres": (0.0, 1.0, 5.0)}


def dendrogram_of(pos: np.ndarray) -> jz.hierarchy.Dendrogram:
    return jz.dendrogram.jit(jz.spanning_tree.jit(pos))


@pytest.fixture
def tree() -> jz.hierarchy.Dendrogram:
    """Two clumps that are near each other, and one far away."""
    rng = np.random.default_rng(1)
    pos = [rng.normal(centre, 0.02, (size, 2)) for size, centre in zip(*CLUMPS.values(), strict=True)]
    return dendrogram_of(np.concatenate(pos))


def outlines(figure: Any) -> list[np.ndarray]:
    """Return the corners of each shape: particles and length."""
    return [path.vertices for shape in figure.axes[0].collections for path in shape.get_paths()]


def test_lines_join_the_clumps_at_their_distances(tree: jz.hierarchy.Dendrogram) -> None:
    (lines,) = plot.plot_dendrogram(tree, min_count=50).axes[0].collections
    segments = np.asarray(lines.get_segments())
    is_level = segments[:, 0, 1] == segments[:, 1, 1]
    joins = np.sort(segments[is_level][:, 0, 1])
    np.testing.assert_allclose(joins, tree.exact_lengths()[-2:])
    ends = segments[~is_level]
    assert len(ends) == 5  # three clumps, two clumps together, and all
    assert (ends[:, 1, 1] > ends[:, 0, 1]).all()
    assert len(set(segments[~is_level][:, 0, 0].tolist())) == 5
    widths = np.asarray(lines.get_linewidths())[~is_level]
    assert widths.max() == widths[np.argmax(ends[:, 1, 1])]


def test_padding_changes_no_picture(tree: jz.hierarchy.Dendrogram) -> None:
    pos = np.random.default_rng(0).random((300, 2)).astype(np.float32)
    padded = jz.data.Pos(pos=np.concatenate([pos, np.zeros((20, 2), np.float32)]), num=300)
    result = [
        plot.plot_dendrogram(jz.dendrogram.jit(jz.spanning_tree.jit(part)), min_count=5) for part in (pos, padded)
    ]
    segments = [np.asarray(figure.axes[0].collections[0].get_segments()) for figure in result]
    np.testing.assert_array_equal(*segments)


def test_widths_are_numbers_of_particles(tree: jz.hierarchy.Dendrogram) -> None:
    clusters = hdbscan(tree, 50)
    shapes = outlines(plot.plot_condensed_tree(clusters))
    assert len(shapes) == len(clusters.tree.parent) == 5
    for item, shape in enumerate(shapes):
        top = shape[shape[:, 1] == shape[:, 1].max(), 0]
        assert np.ptp(top) == pytest.approx(clusters.tree.size[item])
        if (parent := clusters.tree.parent[item]) >= 0:
            outer = shapes[parent]
            end = outer[outer[:, 1] == outer[:, 1].min(), 0]
            assert end.min() <= top.min() <= top.max() <= end.max()
    lengths = np.concatenate(shapes)[:, 1]
    assert lengths.max() == pytest.approx(1.1 * tree.exact_lengths().max(), rel=1e-6)


def test_selected_clusters_have_colours(tree: jz.hierarchy.Dendrogram) -> None:
    clusters = hdbscan(tree, 50)
    assert len(clusters.selected) == 3
    np.testing.assert_array_equal(clusters.tree.size[clusters.selected], [60, 200, 90])
    shapes = plot.plot_condensed_tree(clusters).axes[0].collections
    colours = [tuple(shape.get_facecolor()[0]) for shape in shapes]
    assert len(set(colours)) == 4
    assert all(colours[item] != colours[0] for item in clusters.selected)


@pytest.mark.parametrize("n", [1, 2, 30])
@pytest.mark.parametrize("kind", ["equal", "random"])
def test_few_particles_are_drawn(n: int, kind: str) -> None:
    pos = np.ones((n, 2), np.float32) if kind == "equal" else np.random.default_rng(0).random((n, 2))
    result = dendrogram_of(pos)
    assert len(plot.plot_dendrogram(result, min_count=2).axes) == 1
    for single in (False, True):
        clusters: Clusters = hdbscan(result, 5, allow_single_cluster=single)
        assert np.isfinite(np.concatenate(outlines(plot.plot_condensed_tree(clusters)))).all()


def test_invalid_count_raises(tree: jz.hierarchy.Dendrogram) -> None:
    with pytest.raises(ValueError, match="min_count is 1; it must be at least 2"):
        plot.plot_dendrogram(tree, min_count=1)
