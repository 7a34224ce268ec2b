"""The ragged all_to_all is tested before it is used. CPUs lack it, so it is emulated here, with and without errors."""

import re
import warnings
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import mesh_of, square_mesh
from jax.sharding import PartitionSpec as P

from comm.test_comm import emulated_ragged_all_to_all
from jztree import comm
from jztree._transform import ragged
from jztree._transform.capacity import Capacity
from jztree.jax_ext import shard_map_constructor


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clear the caches of other tests and the environment variable."""
    monkeypatch.delenv("JZTREE_EXCHANGE", raising=False)
    for name in ("method_on", "_method_of_process"):
        monkeypatch.setattr(ragged, name, getattr(ragged, name).__wrapped__)


def late(*arguments: Any, **options: Any) -> jax.Array:
    """Emulate the collective with one message one row late, as if an offset were wrong."""
    arrived = emulated_ragged_all_to_all(*arguments, **options)
    moved = jnp.roll(arrived, 1, axis=0)
    return jnp.where(jax.lax.axis_index(options["axis_name"]) == 1, moved, arrived)


def short(*arguments: Any, **options: Any) -> jax.Array:
    """Emulate the collective without the last row of large messages."""
    arrived = emulated_ragged_all_to_all(*arguments, **options)
    return arrived if arrived.shape[0] < 1000 else arrived.at[1000].set(0)


def missing(*_: Any, **__: Any) -> jax.Array:
    raise NotImplementedError("no such collective\nhere")


@pytest.mark.parametrize("mesh", [lambda: mesh_of(1), lambda: mesh_of(3), lambda: mesh_of(4), square_mesh])
def test_correct_collective_passes(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", emulated_ragged_all_to_all)
    assert ragged.fault_on(mesh()) == ""


@pytest.mark.parametrize(
    ("collective", "fault"),
    [(late, "moves rows to wrong places"), (short, "moves rows to wrong places"), (missing, "fails (no such")],
)
def test_wrong_collective_fails(collective: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", collective)
    assert ragged.fault_on(mesh_of(4)).startswith(fault)


def test_missing_collective_is_reported() -> None:
    """XLA's collective raises an error on a CPU, which the test expects."""
    assert ragged.fault_on(mesh_of(2)).startswith("fails (")


def test_collective_can_be_tested_while_a_caller_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", emulated_ragged_all_to_all)
    result = []

    @jax.jit
    def outer(x: jax.Array) -> jax.Array:
        result.append(ragged.fault_on(mesh_of(2)))
        return x + 1

    assert outer(jnp.float32(1)) == 2
    assert result == [""]


def pretend(mesh: Any, computers: int, name: str = "slice_index") -> Any:
    """Return a mesh of as many devices that pretend to be GPUs in several computers."""
    devices = [SimpleNamespace(platform="gpu", process_index=i, **{name: i % computers}) for i in range(mesh.size)]
    return SimpleNamespace(devices=np.array(devices), size=mesh.size)


@pytest.mark.parametrize("name", ["slice_index", "partition_index"])
def test_gpus_of_one_host_use_ragged_exchange_if_it_is_correct(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "fault_on", lambda mesh: "")
    assert ragged.method_on(pretend(mesh_of(4), 1, name)) == "ragged"
    assert ragged.method_on(pretend(mesh_of(4), 2, name)) == "dense"
    assert ragged.method_on(mesh_of(4)) == "dense"


def test_more_than_32_gpus_use_dense_exchange_without_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collective would end the process (openxla/xla#47283)."""
    tested = []
    monkeypatch.setattr(ragged, "fault_on", lambda mesh: tested.append(mesh.size) or "")
    assert ragged.method_on(pretend(SimpleNamespace(size=32), 1)) == "ragged"
    assert ragged.method_on(pretend(SimpleNamespace(size=33), 1)) == "dense"
    assert tested == [32]


def test_wrong_collective_warns_and_uses_dense_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged, "fault_on", lambda mesh: "moves rows to wrong places")
    with pytest.warns(
        RuntimeWarning, match=r"ragged all_to_all moves rows to wrong places on these 3 devices, so .* dense"
    ):
        assert ragged.method_on(pretend(mesh_of(3), 1)) == "dense"


def test_environment_variable_selects_the_method_without_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_test(mesh: Any) -> str:
        raise AssertionError("tested")

    monkeypatch.setattr(ragged, "fault_on", no_test)
    for method in ragged.METHODS:
        monkeypatch.setenv("JZTREE_EXCHANGE", method)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ragged.method_on(pretend(mesh_of(3), 1)) == method
    monkeypatch.setenv("JZTREE_EXCHANGE", "rugged")
    with pytest.raises(ValueError, match="JZTREE_EXCHANGE must be 'dense' or 'ragged', not 'rugged'"):
        ragged.method_on(mesh_of(1))


def lowered_exchange(mesh: jax.sharding.Mesh) -> str:
    """Return the text of an exchange compiled for GPUs."""

    def there(rows: Any, dest: Any) -> Any:
        return comm.exchange_by_rank(rows, dest, 10, Capacity(40, "all"))[0]

    mapped = shard_map_constructor(there, in_specs=P(-1), out_specs=P(-1))(mesh)
    rows = np.zeros((mesh.size, 10), np.int32)
    return str(jax.jit(mapped).trace(rows, rows).lower(lowering_platforms=("cuda",)).as_text())


def test_mapped_function_uses_the_method_of_its_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is only lowered, without a GPU: the text has the collective, and no loop of dense exchanges."""
    assert "ragged_all_to_all" not in lowered_exchange(mesh_of(4))
    monkeypatch.setattr(ragged, "method_on", lambda mesh: "ragged")
    on_gpu = lowered_exchange(mesh_of(4))
    assert on_gpu.count("@ragged_all_to_all") == 1
    others = re.findall(r'stablehlo.all_to_all".*-> (\S+)', on_gpu)
    assert set(others) == {"tensor<4x1xi32>"}, "only counts"


def test_exchange_is_dense_outside_library_maps() -> None:
    assert ragged.method_of_trace() == "dense"
    with ragged.exchanging("ragged"):
        assert ragged.method_of_trace() == "ragged"
        with ragged.exchanging("dense"):
            assert ragged.method_of_trace() == "dense"
        assert ragged.method_of_trace() == "ragged"
