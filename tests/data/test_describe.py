"""Descriptions of particles, catalogues and hierarchies."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from jax.sharding import PartitionSpec as P

from jztree.config import TreeConfig
from jztree.data import FofCatalogue, Label, ParticleData, Pos, PosMass, RankIdx, expand_particles, squeeze_catalogue
from jztree.fof import fof_and_catalogue
from jztree.jax_ext import shard_map_constructor
from jztree.tree import build_tree_hierarchy, zsort_and_tree

Many = ParticleData(pos=np.zeros((110_592, 3), np.float32), mass=2.5, vel=np.ones((110_592, 3)), num=110_592)


def traced_repr(value: Any) -> str:
    said: list[str] = []
    jax.eval_shape(lambda x: said.append(repr(x)), value)
    return said[0]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Many, "ParticleData(110,592 particles in 3D, float32: pos, mass, vel)"),
        (Pos(pos=np.zeros((1, 2))), "Pos(1 particle in 2D, float64: pos)"),
        (Pos(pos=jnp.asarray(np.zeros((0, 2), np.float32)), num=0), "Pos(0 particles in 2D, float32: pos)"),
        (
            replace(Many, num=jnp.int32(100)),
            "ParticleData(100 particles (110,592 rows) in 3D, float32: pos, mass, vel)",
        ),
        (PosMass(pos=np.zeros((1000, 8, 3), np.float32)), "PosMass(1,000 x 8 particles in 3D, float32: pos)"),
        (
            expand_particles(Pos(pos=jnp.zeros((10, 3))), 4, npad=1),
            "Pos(10 particles (4 devices x 4 rows) in 3D, float32: pos)",
        ),
        (Pos(pos="abc", num=3), "Pos(pos='abc', num=3, num_total=None)"),
        (Pos(pos=np.zeros((5, 2), np.float32), num=None, num_total=99), "Pos(5 particles in 2D, float32: pos)"),
    ],
    ids=["whole", "one", "none", "padded", "neighbours", "dealt", "no_array", "total_is_another_matter"],
)
def test_repr_of_particles_shows_their_number(part: Any, said: str) -> None:
    assert repr(part) == said


def test_repr_of_traced_particles_shows_their_shape() -> None:
    part = Pos(pos=jnp.zeros((120, 3)), num=7)
    assert traced_repr(part) == "Pos(up to 120 particles in 3D, float32: pos; traced)"
    assert traced_repr(replace(part, num=None)) == "Pos(120 particles in 3D, float32: pos; traced)"
    assert repr(jax.eval_shape(lambda x: x, part)) == "Pos(up to 120 particles in 3D, float32: pos; shapes only)"
    said: list[str] = []

    def show(part: Any) -> Any:
        said.append(repr(part))
        return part

    stacked = expand_particles(part, 2)
    shard_map_constructor(show, P(-1), P(-1))(mesh_of(2), jit=True)(stacked)
    jax.vmap(show)(stacked)
    assert said == ["Pos(up to 4 particles in 3D, float32: pos; traced)"] * 2


def test_repr_of_deleted_and_donated_arrays_does_not_raise() -> None:
    part = Pos(pos=jnp.zeros((120, 3)), num=jnp.int32(7))
    jax.jit(lambda x: jax.tree.map(lambda leaf: leaf + 1, x), donate_argnums=0)(part)
    assert repr(part) == "Pos(up to 120 particles in 3D, float32: pos; deleted)"


@pytest.mark.parametrize(("ready", "said"), [(False, "; still being computed"), (True, "")])
def test_repr_omits_numbers_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch, ready: bool, said: str) -> None:
    """They may not be ready, or fetching them may raise the error of their computation."""
    part, fetched = Pos(pos=jnp.zeros((120, 3)), num=jnp.int32(7)), []

    def fail(value: Any) -> Any:
        fetched.append(value)
        raise jax.errors.JaxRuntimeError("INTERNAL: a kernel failed")

    with monkeypatch.context() as patched:
        patched.setattr(type(part.pos), "is_ready", lambda array: ready)
        patched.setattr(np, "asarray", fail)
        line = repr(part)
    assert line == f"Pos(up to 120 particles in 3D, float32: pos{said})"
    assert len(fetched) == ready


def catalogue(count: list[int], rows: int) -> FofCatalogue:
    column = np.zeros(rows, np.int32)
    column[: len(count)] = count
    zero = np.zeros(rows)
    return FofCatalogue(
        ngroups=len(count), count=column, offset=zero, com_pos=zero, com_inertia_radius=zero, max_radius=zero
    )


@pytest.mark.parametrize(
    ("cata", "said"),
    [
        (catalogue([8432, 20, 77], 3), "FofCatalogue(3 groups, 20..8,432 particles)"),
        (catalogue([8432, 20], 1500), "FofCatalogue(2 groups (1,500 rows), 20..8,432 particles)"),
        (catalogue([20, 20], 2), "FofCatalogue(2 groups, 20 particles)"),
        (catalogue([31], 1), "FofCatalogue(1 group, 31 particles)"),
        (catalogue([], 0), "FofCatalogue(0 groups)"),
        (catalogue([], 4), "FofCatalogue(0 groups (4 rows))"),
    ],
)
def test_repr_of_catalogues_shows_number_and_sizes_of_groups(cata: FofCatalogue, said: str) -> None:
    assert repr(cata) == said


def test_repr_of_catalogues_over_devices() -> None:
    stacked = jax.tree.map(lambda *rows: jnp.stack(rows), catalogue([9, 30], 5), catalogue([], 5), catalogue([4], 5))
    assert repr(stacked) == "FofCatalogue(3 groups (3 devices x 5 rows), 4..30 particles)"
    assert repr(squeeze_catalogue(stacked)) == "FofCatalogue(3 groups, 4..30 particles)"
    assert traced_repr(stacked) == "FofCatalogue(up to 15 groups; traced)"


@pytest.mark.long
def test_repr_of_returned_objects() -> None:
    part = PosMass(pos=jnp.asarray(oracles.uniform(3000, 3)), mass=jnp.ones(3000))
    grouped, cata = fof_and_catalogue.jit(part, rlink=0.2)
    jax.block_until_ready(cata)
    assert repr(grouped) == "PosMass(3,000 particles in 3D, float32: pos, mass)"
    assert repr(squeeze_catalogue(cata)) == "FofCatalogue(1 group, 3,000 particles)"
    partz, th = zsort_and_tree(part, TreeConfig(leaf_size=8, masses=True), boxsize=1)
    planes = f"planes of 375, {th.num_nodes(1)} and {th.num_nodes(2)} nodes"
    assert repr(th) == f"TreeHierarchy({planes} in 3D, float32, with masses)"
    assert repr(build_tree_hierarchy(partz.pos[:9], boxsize=1)) == "TreeHierarchy(a plane of 1 node in 3D, float32)"
    stacked = zsort_and_tree.smap(mesh_of(2), jit=True)(expand_particles(part, 2))[1]
    assert "nodes on 2 devices in 3D, float32)" in repr(stacked)


def test_repr_of_labels_and_rows_shows_their_shapes() -> None:
    rows, column = jax.block_until_ready((jnp.zeros((1000, 8), jnp.int32), jnp.zeros(1000, jnp.int32)))
    assert repr(RankIdx(rows, rows)) == "RankIdx(rank: int32[1000,8], idx: int32[1000,8])"
    assert repr(Label(column, column)) == "Label(irank: int32[1000], igroup: int32[1000])"
    assert traced_repr(Label(rows[0], rows[1])) == "Label(irank: int32[8], igroup: int32[8]; traced)"
    assert repr(Label(0, 3)) == "Label(irank=0, igroup=3)"  # type: ignore[arg-type]
