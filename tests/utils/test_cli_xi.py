"""``jztree xi`` compared with SciPy's counts and the definition of the estimator."""

import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.spatial import cKDTree

from jztree.data import Pos
from jztree.radius import pair_counts
from jztree_utils import cli, correlation, ics, io

BINS = ["--bins", "0.3,3,6"]


def run(*arguments: Any) -> None:
    assert cli.main(["xi", *map(str, arguments)]) == 0


def scipy_pairs(pos: np.ndarray, box: Any, edges: np.ndarray) -> np.ndarray:
    tree = cKDTree(np.asarray(pos, np.float64) % box, boxsize=box)
    return np.diff(tree.count_neighbors(tree, edges))


@pytest.fixture
def points(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """Return particles in a box that is not a cube."""
    box = np.array([4.0, 6.0, 8.0])
    pos = np.random.default_rng(3).random((3_000, 3)) ** 2 * box
    path = tmp_path / "points.npy"
    np.save(path, pos)
    return path, pos, box


@pytest.mark.long
@pytest.mark.parametrize("ndev", [4, 1])
def test_correlation_of_the_sample(
    ndev: int, use_devices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_devices(ndev)
    output, picture = tmp_path / "xi.hdf5", tmp_path / "xi.png"
    run("sample", *BINS, "-o", output, "--plot", picture)
    edges = np.geomspace(0.3, 3, 7)
    part, box = ics.cosmo_3d_sample()
    pairs, n = scipy_pairs(part.pos, box, edges), len(part.pos)
    expected = pairs / (n * (n - 1) * 4 / 3 * np.pi * np.diff(edges**3) / box**3) - 1
    with h5py.File(output) as file:
        result = file["Correlation"]
        np.testing.assert_array_equal(result["pairs"], pairs)
        np.testing.assert_allclose(result["value"], expected, rtol=1e-12)
        np.testing.assert_allclose(result["edges"], edges, rtol=1e-12)
        assert (result["edges"][0], result["edges"][-1]) == (0.3, 3)
        assert (result.attrs["statistic"], result.attrs["particles"]) == ("xi", n)
        assert result["edges"].attrs["kind"] == "length"
        assert file["Header"].attrs["BoxSize"] == box
    assert picture.stat().st_size > 10_000
    out = capsys.readouterr().out
    assert f"{pairs.sum():,}, each in both orders" in out
    assert f"{pairs[2]:,}   {expected[2]:.5g}" in " ".join(out.split("\n"))


def test_summary_for_scripts(points: Any, use_devices: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use_devices(1)
    path, pos, box = points
    run(path, "--boxsize", "4,6,8", "--bins", "0,2,4", "--linear", "--json")
    message = json.loads(capsys.readouterr().out)
    assert message["edges"] == [0, 0.5, 1, 1.5, 2]
    assert message["pairs"] == scipy_pairs(pos, box, np.arange(5) / 2).tolist()
    assert (message["statistic"], message["particles"], message["pi_max"]) == ("xi", 3_000, None)


@pytest.mark.long
@pytest.mark.parametrize("ndev", [3, 1])
def test_projected(ndev: int, use_devices: Any, points: Any, tmp_path: Path) -> None:
    use_devices(ndev)
    path, pos, box = points
    output = tmp_path / "wp.hdf5"
    run(path, "--boxsize", "4,6,8", "--bins", "0.1,1.5,5", "--projected", "2.5", "--los", "y", "-o", output)
    edges, along = np.geomspace(0.1, 1.5, 6), np.linspace(0, 2.5, 41)
    separation = pos[:, None] - pos
    separation = np.abs(separation - np.round(separation / box) * box)
    across, depth = np.hypot(separation[..., 0], separation[..., 2]), separation[..., 1]
    # A pair at an edge is in the bin below, and a pair at 0 along the line of sight in the first bin.
    inside = np.stack([(across > low) & (across <= high) for low, high in itertools.pairwise(edges)])
    slot = np.searchsorted(along, depth, side="left").clip(1) - 1
    pairs = np.stack([np.bincount(slot[bin_], minlength=41)[:40] for bin_ in inside])
    volume = np.pi * np.diff(edges**2)[:, None] * 2 * np.diff(along) / box.prod()
    expected = ((pairs / (3_000 * 2_999 * volume) - 1) * 2 * np.diff(along)).sum(axis=1)
    with h5py.File(output) as file:
        np.testing.assert_array_equal(file["Correlation/pairs"], pairs.sum(axis=1))
        np.testing.assert_allclose(file["Correlation/value"], expected, rtol=1e-9)
        assert file["Correlation"].attrs["line_of_sight"] == "y"
        assert file["Correlation"].attrs["pi_max"] == 2.5


def test_default_bins(tmp_path: Path, use_devices: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use_devices(1)
    io.write_snapshot(
        tmp_path / "a.hdf5", Pos(pos=np.random.default_rng(1).random((1000, 3))), io.SnapshotHeader(boxsize=1.0)
    )
    run(tmp_path / "a.hdf5", "--json")
    edges = json.loads(capsys.readouterr().out)["edges"]
    assert len(edges) == 21
    assert (edges[0], edges[-1]) == (pytest.approx(0.01), 0.1)


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 2])
def test_few_particles(n: int, use_devices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use_devices(1 + n)
    np.save(tmp_path / "few.npy", np.full((n, 3), 0.5) + np.arange(n)[:, None] * 0.01)
    run(tmp_path / "few.npy", "--boxsize", "1", "--bins", "0.01,0.2,2", "--plot", tmp_path / "few.png", "--json")
    message = json.loads(capsys.readouterr().out)
    assert message["pairs"] == [2 if n == 2 else 0, 0]
    assert message["value"][1] == (-1 if n == 2 else None)


@pytest.mark.parametrize("projected", [[], ["--projected", "0.4"]])
def test_one_particle_gives_nan_and_one_warning(
    projected: list[str], use_devices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_devices(1)
    np.save(tmp_path / "one.npy", np.full((1, 3), 0.5))
    run(tmp_path / "one.npy", "--boxsize", "1", "--bins", "0.01,0.2,2", *projected)
    message = capsys.readouterr()
    name = "wp" if projected else "xi"
    words = f"{name} is NaN in bins 0 to 1 (0.01 to 0.2): the data hold 1 particle, but a pair needs 2."
    assert message.err == f"jztree: warning: {words}\n"
    assert "nan" in message.out


def test_outputs_of_other_bins_are_not_reused(points: Any, use_devices: Any, tmp_path: Path, capsys: Any) -> None:
    use_devices(1)
    arguments = [points[0], "--boxsize", "4,6,8", "-o", tmp_path / "xi_{name}.hdf5"]
    run(*arguments, *BINS[:1], "0.3,1.5,6")
    run(*arguments, *BINS[:1], "0.3,1.5,6")
    assert "is skipped" in capsys.readouterr().out
    assert cli.main(["xi", *map(str, arguments), "--bins", "0.3,1.5,7"]) == 2
    assert "was made with --bins 0.3,1.5,6, but this call is with --bins 0.3,1.5,7" in capsys.readouterr().err


def test_projected_bins_end_at_half_the_smaller_side_of_the_sky(points: Any, use_devices: Any) -> None:
    use_devices(1)  # test_cli_refusals.py has the line of sight y, for which these bins are too wide
    run(points[0], "--boxsize", "4,6,8", "--bins", "0.1,2.5,4", "--projected", "1", "--los", "x")


@pytest.mark.parametrize("side", [1.0, 10.0, 17.3])
def test_one_particle_in_a_cube_has_no_default_bins(side: float, tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "one.npy", np.ones((1, 3)) * 0.3)
    assert cli.main(["xi", str(tmp_path / "one.npy"), "--boxsize", str(side)]) == 2
    assert "too far apart for the default bins, which would start at" in capsys.readouterr().err


def test_two_dimensions(tmp_path: Path, use_devices: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use_devices(1)
    pos = np.random.default_rng(5).random((500, 2))
    np.save(tmp_path / "flat.npy", pos)
    run(tmp_path / "flat.npy", "--boxsize", "1", "--bins", "0.1,0.4,3", "--json")
    assert json.loads(capsys.readouterr().out)["pairs"] == scipy_pairs(pos, 1.0, np.geomspace(0.1, 0.4, 4)).tolist()
    assert cli.main(["xi", str(tmp_path / "flat.npy"), "--boxsize", "1", "--projected", "0.2"]) == 2
    assert "--projected needs 3 dimensions, but the particles have 2; leave it out." in capsys.readouterr().err


def test_dry_run_counts_nothing(points: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io.Snapshot, "read", lambda *_, **__: pytest.fail("particles were read"))
    run(points[0], "--boxsize", "4,6,8", "--dry-run")
    assert "s for the search only" in capsys.readouterr().out


# From counts


def test_existing_counts() -> None:
    pos = np.random.default_rng(2).random((800, 3))
    edges, along = np.array([0.05, 0.1, 0.3]), np.linspace(0, 0.4, 5)
    count = pair_counts(pos.astype(np.float32), edges, boxsize=1.0)
    result = correlation.xi_from_counts(count, 800, edges, [1.0, 1.0, 1.0])
    expected = correlation.xi(pos.astype(np.float32), edges, 1.0)
    np.testing.assert_allclose(result.value, expected.value, rtol=1e-12)
    count = np.asarray(pair_counts(pos.astype(np.float32), edges, boxsize=1.0, mode="rp_pi", edges_b=along).count)
    result = correlation.wp_from_counts(count, 800, edges, along, [1.0, 1.0, 1.0])
    expected = correlation.wp(pos.astype(np.float32), edges, 0.4, 1.0, num_pi=4)
    np.testing.assert_allclose(result.value, expected.value, rtol=1e-12)
    with pytest.raises(ValueError, match=r"of shape \(4,\), but the edges give \(2,\); give one more edge"):
        correlation.xi_from_counts(count[0], 800, edges, [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="one positive and finite length per dimension"):
        correlation.xi_from_counts(count[:, 0], 800, edges, 1.0)
    with pytest.raises(ValueError, match="only up to half the box"):
        correlation.xi_from_counts(count[:, 0], 800, edges, [1.0, 1.0, 0.5])
