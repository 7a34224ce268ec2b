"""The distance at which the command line attaches particles of other types, in a zoom-in simulation, against SciPy."""

import inspect
import json
from pathlib import Path

import numpy as np
import oracles
import pytest
from headers import write_types
from scipy.spatial import cKDTree

import jztree as jz
from jztree_utils import cli
from jztree_utils.cli._commands.arguments import ATTACH_WITHIN, parse
from jztree_utils.cli._commands.earlier_outputs import made_with

_BOX, _RLINK = 100.0, 0.3


def write_zoom(path: Path, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Write one high-resolution halo in a large box of heavy particles. Return the positions of both."""
    nearest = rng.normal(50, 0.5, (800, 3)).astype(np.float32)
    far = np.concatenate([rng.random((500, 3)) * _BOX, rng.normal(50, 1.5, (300, 3))]).astype(np.float32)
    header = {"BoxSize": _BOX, "Time": 1.0, "Redshift": 0.0, "MassTable": [0, 1, 8, 0, 0, 0]}
    write_types(path, header, {1: {"Coordinates": nearest}, 2: {"Coordinates": far}})
    return nearest, far


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("within", "devices"),
    [(None, 1), (1.5, 1), ("inf", 1), (1.5, 4), pytest.param(None, 4, marks=SLOW), pytest.param("inf", 4, marks=SLOW)],
)
def test_far_particles_are_not_attached(devices, within, tmp_path, random, use_devices, capsys) -> None:
    use_devices(devices)
    nearest, far = write_zoom(tmp_path / "zoom.hdf5", random)
    option = [] if within is None else ["--attach-within", str(within)]
    call = ["fof", str(tmp_path / "zoom.hdf5"), "--rlink", str(_RLINK), "--npart-min", "1", "--attach", "2", "--json"]
    assert cli.main([*call, *option]) == 0
    tree = cKDTree(nearest.astype(np.float64), boxsize=_BOX)
    distance, row = tree.query(far.astype(np.float64))
    joins = distance <= float(within or 6.4) * _RLINK
    groups = np.asarray(oracles.components(nearest, _RLINK, _BOX))
    counts = np.bincount(groups) + np.bincount(groups[row[joins]], minlength=groups.max() + 1)
    largest = json.loads(capsys.readouterr().out)["largest"]["count"]
    alone = np.ones(np.count_nonzero(~joins), int)
    assert largest == sorted([*counts[counts > 0].tolist(), *alone.tolist()], reverse=True)[: len(largest)]


def test_default_limit_is_that_of_the_library_and_is_recorded_in_outputs(snapshot) -> None:
    assert inspect.signature(jz.fof.fof_and_catalogue).parameters["attach_within"].default == ATTACH_WITHIN
    for flags, held in (
        (["--attach", "2"], 6.4),
        (["--attach", "2", "--attach-within", "3"], 3.0),
        (["--attach-within", "3"], None),
    ):
        assert json.loads(made_with(parse(["fof", *flags]), snapshot, None))["attach_within"] == held


@pytest.mark.parametrize("limit", ["-1", "nan"])
def test_invalid_limits_raise(limit, snapshot, error_of) -> None:
    assert f"--attach-within is {limit}; it must be finite and at least 0." in error_of(
        "fof", snapshot, f"--attach-within={limit}"
    )
