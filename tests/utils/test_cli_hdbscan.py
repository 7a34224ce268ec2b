"""``jztree hdbscan`` compared with the estimator, and its file."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from jztree_utils import cli, io
from jztree_utils.hdbscan import hdbscan


def clumps(sizes: tuple[int, ...], width: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Return shuffled clumps in a periodic box of length 1, far from each other, and the clump of each point."""
    rng = np.random.default_rng(5)
    centres = np.array([[0.01, 0.5, 0.99], [0.5, 0.02, 0.5], [0.6, 0.6, 0.02]])[: len(sizes)]
    points = [rng.normal(centre, width, (size, 3)) for centre, size in zip(centres, sizes, strict=True)]
    order = rng.permutation(sum(sizes))
    return np.concatenate(points)[order] % 1, np.repeat(np.arange(len(sizes)), sizes)[order]


@pytest.fixture(autouse=True)
def one_device(use_devices: Any) -> None:
    use_devices(1)


@pytest.fixture
def snapshot(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    pos, clump = clumps((60, 200, 90))
    path = tmp_path / "points.npy"
    np.save(path, pos)
    return path, pos, clump


def run(*arguments: Any) -> None:
    assert cli.main(["hdbscan", *map(str, arguments)]) == 0


@pytest.mark.parametrize("ndev", [1, 4])
def test_clusters_are_ordered_by_size(
    ndev: int, snapshot: Any, use_devices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_devices(ndev)
    path, pos, clump = snapshot
    output = tmp_path / "clusters.hdf5"
    run(path, "--boxsize", 1, "--min-samples", 1, "-o", output, "--plot", tmp_path / "clusters.png")
    result = io.read_clusters(output)
    place = np.array([2, 0, 1])[clump]
    clustered = result.label >= 0
    np.testing.assert_array_equal(result.label[clustered], place[clustered])
    np.testing.assert_array_equal(result.count, np.bincount(result.label[clustered]))
    assert (np.diff(result.count) < 0).all()
    centres = np.array([[0.5, 0.02, 0.5], [0.6, 0.6, 0.02], [0.01, 0.5, 0.99]])
    assert np.abs((result.centre - centres + 0.5) % 1 - 0.5).max() < 0.02
    offsets = (pos[clustered] - result.centre[result.label[clustered]] + 0.5) % 1 - 0.5
    distances = np.linalg.norm(offsets, axis=1)
    max_distance = [distances[result.label[clustered] == row].max() for row in range(3)]
    np.testing.assert_allclose(result.max_radius, max_distance, rtol=1e-6)
    assert (result.probability[~clustered] == 0).all()
    assert (tmp_path / "clusters.png").stat().st_size > 10_000
    assert "clusters               3" in capsys.readouterr().out


def test_file_equals_estimator(snapshot: Any, tmp_path: Path, x64: None) -> None:
    estimators = pytest.importorskip("jztree_utils.estimators")
    path, pos, _ = snapshot
    options = ["--min-cluster-size", 8, "--min-samples", 4, "--epsilon", 0.004, "--method", "leaf"]
    run(path, "--boxsize", 1, *options, "-o", tmp_path / "clusters.hdf5")
    result = io.read_clusters(tmp_path / "clusters.hdf5")
    expected = estimators.HDBSCAN(8, 4, 0.004, cluster_selection_method="leaf", boxsize=1.0).fit(pos)
    np.testing.assert_array_equal(result.label < 0, expected.labels_ < 0)
    assert len(set(zip(result.label, expected.labels_, strict=True))) == len(set(expected.labels_))
    np.testing.assert_allclose(result.probability, expected.probabilities_, atol=1e-6)
    np.testing.assert_allclose(result.outlier_score, expected.outlier_scores_, atol=1e-6)


def test_one_cluster_requires_single(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "points.npy"
    np.save(path, clumps((300,))[0])
    for options, number in (([], None), (["--single"], 1)):
        run(path, "--boxsize", 1, "--min-cluster-size", 100, *options, "--json")
        message = json.loads(capsys.readouterr().out)
        assert message["clusters"] == (message["clusters"] if number is None else number)
        assert message["particles"] == 300
        assert message["min_samples"] == 100


def test_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = tmp_path / "points.npy", tmp_path / "clusters.hdf5"
    np.save(path, np.random.default_rng(0).random((30, 3)))
    run(path, "--boxsize", 1, "-o", output, "--plot", tmp_path / "clusters.png")
    result = io.read_clusters(output)
    assert (result.label == -1).all()
    assert result.count.shape == (0,)
    assert result.centre.shape == (0, 3)
    assert "clusters               0" in capsys.readouterr().out


def test_dry_run_writes_nothing(snapshot: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "clusters.hdf5"
    run(snapshot[0], "--boxsize", 1, "-o", output, "--dry-run")
    assert "fits" in capsys.readouterr().out
    assert not output.exists()


def test_output_of_other_options_raises(snapshot: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["hdbscan", str(snapshot[0]), "--boxsize", "1", "-o", str(tmp_path / "{name}.hdf5")]
    assert cli.main(call) == 0
    assert cli.main([*call, "--method", "leaf"]) == 2
    assert "--method" in capsys.readouterr().err


def some_clusters() -> io.ParticleClusters:
    return io.ParticleClusters(
        label=np.array([0, -1, 0]),
        probability=np.array([1.0, 0.0, 0.5]),
        outlier_score=np.array([0.0, 0.9, 0.1]),
        count=np.array([2]),
        centre=np.array([[0.1, 0.2]]),
        max_radius=np.array([0.3]),
        id=np.array([7, 8, 2**64 - 1], np.uint64),
    )


def test_columns_survive_a_file(tmp_path: Path) -> None:
    written = some_clusters()
    io.write_clusters(tmp_path / "a.hdf5", written)
    result = io.read_clusters(tmp_path / "a.hdf5")
    for name in ("label", "probability", "outlier_score", "count", "centre", "max_radius", "id"):
        np.testing.assert_array_equal(getattr(result, name), getattr(written, name))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("label", np.zeros(3)),
        ("label", np.zeros((3, 1), int)),
        ("probability", np.zeros(2)),
        ("id", np.zeros(3)),
        ("centre", np.zeros(1)),
        ("count", np.zeros((), int)),
    ],
)
def test_invalid_column_raises(name: str, values: np.ndarray, tmp_path: Path) -> None:
    clusters = some_clusters()
    setattr(clusters, name, values)
    with pytest.raises(ValueError, match=r"of clusters is .* it must be"):
        io.write_clusters(tmp_path / "a.hdf5", clusters)


@pytest.mark.parametrize("change", ["missing", "scalar", "text", "short", "empty"])
def test_damaged_file_raises(change: str, tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    io.write_clusters(path, some_clusters())
    with h5py.File(path, "a") as file:
        if change == "missing":
            del file["Clusters/centre"]
        else:
            del file["Particles/label"]
            values = {"scalar": 1, "text": "a", "short": [0], "empty": h5py.Empty("i8")}[change]
            file["Particles/label"] = values
    with pytest.raises(io.SnapshotError, match=r"a\.hdf5"):
        io.read_clusters(path)


def test_other_dendrogram_raises() -> None:
    with pytest.raises(TypeError, match="must be a jztree\\.hierarchy\\.Dendrogram, not ndarray"):
        hdbscan(np.zeros((3, 4)))
