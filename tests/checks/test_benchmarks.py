"""The benchmarks compare like with like, and draw what they measured."""

import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jztree as jz

BENCHMARKS = Path(__file__).parents[2] / "checks" / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("peers", "timing", "draw"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_keys_that_numpy_sorts_are_ours() -> None:
    import peers  # noqa: PLC0415

    pos = np.random.default_rng(1).random((20_000, 3), dtype=np.float32)
    _, order = jz.tree.zsort.jit(jnp.asarray(pos), boxsize=1.0)
    np.testing.assert_array_equal(peers.lexsort(pos)(), order)


def test_sweeps_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import draw  # noqa: PLC0415

    def points(axis: str, values: list[int]) -> list[dict[str, Any]]:
        return [
            {"what": what, "library": library, axis: value, "seconds": value * 1e-3}
            for what in ("kNN", "FoF")
            for library in ("jztree", "kdcount")
            for value in values
        ]

    native = {"instruction_set": "x86-64-v3", "num_threads": 2}
    results = {
        "machine": {"cpu": "a CPU", "native": native, "date": "2000-01-01"},
        "sweeps": points("n", [1000, 10_000]) + points("k", [4, 8]) + points("threads", [1, 2]),
    }
    draw.sweeps(results, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"against_{axis}.png" for axis in ("n", "k", "threads")}
