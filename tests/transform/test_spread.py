"""Arrays distributed over devices: functions that are not mapped warn, because each device does all of the work."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree.data import PosMass

POS = oracles.uniform(40, 3)
CALLS = {
    "knn.jit": lambda pos: jz.knn.knn.jit(pos, 3, 1.0),
    "knn": lambda pos: jz.knn.knn(pos, 3, 1.0),
    "a class": lambda pos: jz.knn.knn.jit(PosMass(pos=pos, mass=1.0), 3, 1.0),
    "queries": lambda pos: jz.knn.knn.jit(POS, 3, 1.0, part_query=pos),
    "calls another": lambda pos: jz.density.smoothing_length(pos, 3, boxsize=1.0),
    "fof_labels.jit": lambda pos: jz.fof.fof_labels.jit(pos, 0.1, 1.0),
}


def laid_out(spec: P, mesh: Any = None) -> jax.Array:
    return jax.device_put(POS, NamedSharding(mesh or mesh_of(2), spec))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_spread_particles_warn_once(call: Any) -> None:
    with pytest.warns(RuntimeWarning, match=r"spread over 2 devices.*\.smap\(mesh, jit=True\)") as caught:
        result = call(laid_out(P("gpus")))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    jax.tree.map(np.testing.assert_array_equal, result, call(POS))


def test_no_warning_if_work_is_not_repeated() -> None:
    mesh = mesh_of(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jz.knn.knn.jit(laid_out(P()), 3, 1.0)  # replicated deliberately
        jz.knn.knn.jit(jax.device_put(POS, mesh.devices[1]), 3, 1.0)
        _, cata = jz.fof.fof_and_catalogue.smap(mesh, jit=True)(laid_out(P("gpus")).reshape(2, 20, 3), 0.3, 1.0)
        jz.halos.principal_axes(cata)  # row by row


def test_blocks_of_rows_stay_on_their_devices() -> None:
    pos = laid_out(P("gpus"))
    blocks = pos.reshape(2, 20, 3)
    assert [shard.data.shape for shard in blocks.addressable_shards] == [(1, 20, 3)] * 2
    radius, row = jz.knn.knn.smap(mesh_of(2), jit=True)(blocks, 3, 1.0)
    expected = jz.knn.knn(jnp.asarray(POS), 3, 1.0)
    np.testing.assert_array_equal(radius.reshape(40, 3), expected[0])
    np.testing.assert_array_equal(row.reshape(40, 3), expected[1])
