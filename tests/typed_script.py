"""Types of functions and their twins, as type checkers see them. `make lint` checks this file; nothing runs it.

Comments that ignore an error are part of the check: without that error, they would be errors themselves.
"""

from typing import Any, assert_type

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree.data import FofCatalogue, Pos
from jztree.tree import TreeHierarchy
from jztree_utils import ics


def results_are_those_of_the_function(part: Pos, mesh: Mesh) -> None:
    assert_type(jz.fof.fof_labels(part, 0.1), tuple[Any, jax.Array])
    assert_type(jz.fof.fof_labels.jit(part, rlink=0.1, output_order="input"), tuple[Any, jax.Array])
    assert_type(jz.fof.fof_and_catalogue.smap(mesh, jit=True)(part, rlink=0.1), tuple[Any, FofCatalogue])
    assert_type(jz.fof.distr_fof_labels.smap(mesh)(part, 0.1, linearize_labels=True), tuple[Any, Any])
    assert_type(jz.tree.build_tree_hierarchy.jit(part), TreeHierarchy)
    assert_type(jz.tree.search_sorted_z.jit(part, part, side="right"), jax.Array)
    assert_type(jz.fof.fof_labels.jit.lower(part, 0.1), jax.stages.Lowered)
    assert_type(ics.uniform_particles.smap(mesh, jit=True)(1000, seed=2).num_total, int | None)


def arguments_are_those_of_the_function(part: Pos, mesh: Mesh) -> None:
    jz.knn.knn.jit(part, 8, boxsize=1.0, result="rad")
    jz.knn.knn.jit(part, neighbours=8)  # type: ignore[call-arg]
    jz.knn.knn.jit(part, k="8")  # type: ignore[arg-type]
    jz.knn.knn.smap(mesh, jit=True)(part)  # type: ignore[call-arg]
    jz.knn.knn.smap(mesh, compiled=True)  # type: ignore[call-arg]
    jz.tree.distr_zsort.smap(mesh)(part, equalize="no")  # type: ignore[arg-type]
    jz.tree.distr_zsort.jit  # type: ignore[attr-defined]  # noqa: B018


@jz.jax_ext.with_twins(in_specs=(P(-1), None), out_specs=P(-1))
def spread(part: Pos, dims: int = 3) -> jax.Array:
    """An example of a user's function."""
    return jax.numpy.std(jax.numpy.asarray(part.pos)[:, :dims])


@jz.jax_ext.with_smap(in_specs=P(-1), out_specs=P())
def most(part: Pos) -> jax.Array:
    """Another function, whose result is the same on all devices."""
    return jax.numpy.max(jz.comm.all_max(part.pos))


def functions_of_users_have_twins_too(part: Pos, mesh: Mesh) -> None:
    assert_type(spread(part, 2), jax.Array)
    assert_type(spread.smap(mesh, jit=True)(part, dims=2), jax.Array)
    spread.jit(part, dim=2)  # type: ignore[call-arg]
    assert_type(most.smap(mesh)(part), jax.Array)
    mapped = jz.jax_ext.shard_map_constructor(most, in_specs=P(-1), out_specs=P())(mesh, jit=True)
    assert_type(mapped(part), jax.Array)
    mapped(part, 2)  # type: ignore[call-arg]
