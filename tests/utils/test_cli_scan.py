"""``jztree fof --scan-b`` compared with catalogues at single linking lengths."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

from jztree.fof import fof_labels
from jztree.hierarchy import dendrogram
from jztree.mst import spanning_tree
from jztree_utils import cli, ics
from jztree_utils.cli._commands.fof_scan import count_groups


def run(*arguments: Any) -> None:
    assert cli.main(["fof", *map(str, arguments)]) == 0


@pytest.mark.parametrize("minimum", [1, 2, 20])
@pytest.mark.parametrize("n", [0, 1, 2, 500])
def test_counts_equal_those_of_labels(n: int, minimum: int) -> None:
    pos = oracles.clustered(n, 3) % 1
    clusters = dendrogram(spanning_tree(pos, boxsize=1.0))
    lengths = np.append(np.linspace(0, 0.3, 12), clusters.exact_lengths()[::40])
    result = count_groups(clusters, lengths, lengths, minimum)
    for i, rlink in enumerate(lengths):
        sizes = np.bincount(fof_labels.jit(pos, rlink, 1.0)[1], minlength=1)
        sizes = sizes[sizes >= minimum]
        expected = len(sizes), sizes.sum(), sizes.max(initial=0)
        assert (result.groups[i], result.members[i], result.largest[i]) == expected


@pytest.mark.long
def test_scan_of_the_sample(use_devices: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    use_devices(1)
    picture = tmp_path / "numbers.png"
    run("sample", "--scan-b", "0.1:0.3:3", "--npart-min", 32, "--plot", picture, "--json")
    message = json.loads(capsys.readouterr().out)
    part, box = ics.cosmo_3d_sample()
    np.testing.assert_allclose(message["b"], [0.1, 0.2, 0.3])
    separation = box / len(part.pos) ** (1 / 3)
    np.testing.assert_allclose(message["linking_length"], np.array(message["b"]) * separation, rtol=1e-4)
    for i, rlink in enumerate(message["linking_length"]):
        sizes = np.bincount(fof_labels.jit(part.pos, rlink, box)[1])
        listed = sizes[sizes >= 32]
        assert message["groups"][i] == len(listed) > 0
        assert message["particles_in_groups"][i] == listed.sum()
        assert message["largest"][i] == sizes.max()
    assert picture.stat().st_size > 10_000


@pytest.mark.long
def test_table_has_a_row_for_each_length(use_devices: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use_devices(1)
    run("sample", "--scan-b", "0.1:0.3")
    out = capsys.readouterr().out
    assert "most groups" in out
    assert len([line for line in out.splitlines() if line.strip().startswith("0.")]) == 21


def test_dry_run_reads_no_particles(use_devices: Any, capsys: pytest.CaptureFixture[str]) -> None:
    use_devices(1)
    run("sample", "--scan-b", "0.1:0.3", "--dry-run")
    assert "would write" in capsys.readouterr().out


@pytest.mark.slow
def test_scan_does_not_depend_on_the_number_of_devices(use_devices: Any, capsys: pytest.CaptureFixture[str]) -> None:
    result = []
    for ndev in (1, 3):
        use_devices(ndev)
        run("sample", "--scan-b", "0.1:0.3:5", "--json")
        result.append(json.loads(capsys.readouterr().out))
        del result[-1]["seconds"]
    assert result[0] == result[1]
