"""Padding, squeezing and distributing particles, and the order of a catalogue."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import first_devices
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jztree import data, tree


def particles(n: int = 10, num: Any = None) -> data.ParticleData:
    return data.ParticleData(
        pos=jnp.asarray(oracles.uniform(n, 3)),
        mass=jnp.arange(n, dtype=jnp.float32),
        vel=jnp.ones((n, 3)),
        id=jnp.arange(n, dtype=jnp.int32),
        num=num,
        num_total=77,
    )


def assert_same(a: Any, b: Any) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("cls", [data.Pos, data.PosMass, data.ParticleData])
def test_particle_classes_are_pytrees_with_a_static_total(cls: Any) -> None:
    part = cls(pos=jnp.zeros((4, 3)), num=3, num_total=9)
    assert len(jax.tree.leaves(part)) == 2
    doubled = jax.jit(lambda p: jax.tree.map(lambda x: 2 * x, p))(part)
    assert doubled.num_total == 9
    assert int(doubled.num) == 6


def test_pad_appends_empty_rows() -> None:
    padded = data.pad_particles(particles(), 4)
    assert padded.pos.shape == (14, 3)
    assert padded.id.shape == (14,)
    assert int(padded.num) == 10
    np.testing.assert_array_equal(padded.pos[10:], np.nan)
    again = data.pad_particles(padded, 2)
    assert again.pos.shape == (16, 3)
    assert int(again.num) == 10
    assert_same(data.pad_particles(particles(num=3), 0), particles(num=3))


@pytest.mark.parametrize("num", [3, None])
def test_expand_repeats_leaves_that_all_particles_share(num: int | None) -> None:
    header = np.arange(3, dtype=np.float32)  # as many numbers as particles without padding
    part = data.ParticleData(pos=oracles.uniform(10, 3), vel=header, num=num)
    stacked = data.expand_particles(part, 2)
    np.testing.assert_array_equal(stacked.vel, [header, header])
    np.testing.assert_array_equal(data.flatten_particles(stacked).pos, part.pos[:num])


def test_pad_leaves_shared_properties_alone() -> None:
    padded = data.pad_particles(data.PosMass(pos=jnp.zeros((4, 3)), mass=2.5), 3)
    assert padded.mass == 2.5
    assert padded.pos.shape == (7, 3)


def test_pad_works_under_jit_with_a_traced_num() -> None:
    padded = jax.jit(lambda p: data.pad_particles(p, 3))(particles(num=6))
    assert int(padded.num) == 6
    assert padded.pos.shape == (13, 3)


def test_pad_by_a_negative_number_raises() -> None:
    with pytest.raises(ValueError, match="-1"):
        data.pad_particles(particles(), -1)


@pytest.mark.parametrize("num", [0, 4, 10])
def test_squeeze_is_the_inverse_of_pad(num: int) -> None:
    part = jax.tree.map(lambda x: x[:num], data.replace_num(particles(), None))
    squeezed = data.squeeze_particles(data.pad_particles(part, 5))
    assert int(squeezed.num) == num
    assert_same(data.replace_num(squeezed, None), part)


def test_squeeze_of_unpadded_particles() -> None:
    assert_same(data.replace_num(data.squeeze_particles(particles()), None), particles())


def test_squeeze_any() -> None:
    tree = {"a": jnp.arange(5), "b": (np.ones((5, 2)), 3.0)}
    squeezed = data.squeeze_any(tree, num=jnp.int32(2))
    np.testing.assert_array_equal(squeezed["a"], [0, 1])
    assert squeezed["b"][0].shape == (2, 2)
    assert squeezed["b"][1] == 3.0


@pytest.mark.parametrize("ndev", [1, 3, 10, 13])
@pytest.mark.parametrize("npad", [0, 2])
@pytest.mark.parametrize("num", [None, 7, 0], ids=str)
def test_flatten_is_the_inverse_of_expand(ndev: int, npad: int, num: int | None) -> None:
    part = particles(num=num)
    stacked = data.expand_particles(part, ndev, npad)
    count = 10 if num is None else num
    rows = -(-count // ndev) + npad
    assert stacked.pos.shape == (ndev, rows, 3)
    assert stacked.id.shape == (ndev, rows)
    assert int(stacked.num.sum()) == count
    assert int(stacked.num.max() - stacked.num.min()) <= 1
    for back in (data.flatten_particles(stacked), data.squeeze_particles(stacked)):
        assert_same(data.replace_num(back, None), data.replace_num(data.squeeze_particles(part), None))
        assert int(back.num) == count


MESHES = [
    pytest.param(shape, marks=() if shape == (3,) else pytest.mark.slow) for shape in ((1,), (3,), (2, 2), (4, 2), (8,))
]


@pytest.mark.long
@pytest.mark.parametrize("shape", MESHES)
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("spread", [True, False], ids=["spread", "replicated"])
def test_arrays_on_any_mesh(shape: tuple[int, ...], axis_type: AxisType, spread: bool) -> None:
    """Mapped functions return such arrays; `jax.make_mesh` makes explicit axes by default."""
    names, ndev = ("nodes", "gpus")[: len(shape)], int(np.prod(shape))
    mesh = jax.make_mesh(shape, names, axis_types=(axis_type,) * len(shape), devices=first_devices(ndev))
    where = NamedSharding(mesh, P(names) if spread else P())

    def put(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(jnp.asarray(leaf), where if np.ndim(leaf) else None), tree)

    flat = data.Pos(pos=np.random.default_rng(1).random((8 * ndev, 3)).astype(np.float32), num=8 * ndev - 3)
    stacked = data.expand_particles(flat, ndev, npad=1)
    for func in (
        data.squeeze_particles,
        lambda part: data.pad_particles(part, 3),
        lambda part: data.expand_particles(part, 2, npad=1),
        lambda part: data.squeeze_any(part, num=5),
    ):
        assert_same(func(put(flat)), func(flat))
    for func in (data.squeeze_particles, data.flatten_particles, lambda part: data.expand_particles(part, 2)):
        assert_same(func(put(stacked)), func(stacked))
    assert_same(data.squeeze_any(put(stacked), num=1), data.squeeze_any(stacked, num=1))
    cata = catalogue([5, 9, 2], 8 * ndev)
    assert_same(data.squeeze_catalogue(put(cata)), data.squeeze_catalogue(cata))
    assert_same(data.sort_catalogue(put(cata)), data.sort_catalogue(cata))
    of_ranks = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * ndev), cata)
    assert_same(data.squeeze_catalogue(put(of_ranks)), data.squeeze_catalogue(of_ranks))
    counts = jnp.full(ndev, 16, jnp.int32)
    for mode in ("rank", "global"):
        with_room = functools.partial(data.squeeze_catalogue, size_out=4 * ndev, offset_mode=mode)
        result = jax.jit(lambda cata, nparts, call=with_room: call(cata, nparts=nparts))(put(of_ranks), put(counts))
        assert_same(result, with_room(of_ranks, nparts=counts))


@pytest.mark.long
def test_mapped_results_on_the_default_mesh_of_jax() -> None:
    mesh = jax.make_mesh((3,), ("x",), devices=first_devices(3))
    part = particles()
    sorted_everywhere, _ = tree.distr_zsort.smap(mesh, jit=True)(data.expand_particles(part, 3, npad=2))
    joined = data.squeeze_particles(sorted_everywhere)
    np.testing.assert_array_equal(joined.pos, tree.zsort(part)[0].pos)


def test_shared_mass_survives_expand_and_flatten() -> None:
    part = data.PosMass(pos=jnp.asarray(oracles.uniform(9, 2)), mass=2.5)
    stacked = data.expand_particles(part, 4)
    assert np.shape(stacked.mass) == (4,)
    back = data.flatten_particles(stacked)
    assert float(back.mass) == 2.5
    np.testing.assert_array_equal(back.pos, part.pos)


def test_expand_with_as_many_devices_as_rows() -> None:
    """The leading lengths of devices and rows are equal, and must not be confused."""
    part = data.ParticleData(pos=jnp.asarray(oracles.uniform(4, 2)), mass=3.0, id=jnp.arange(4))
    back = data.flatten_particles(data.expand_particles(part, 4))
    np.testing.assert_array_equal(back.pos, part.pos)
    np.testing.assert_array_equal(back.id, part.id)
    assert np.shape(back.mass) == ()
    assert float(back.mass) == 3.0


def test_expand_to_zero_devices_raises() -> None:
    with pytest.raises(ValueError, match="0"):
        data.expand_particles(particles(), 0)


@jax.tree_util.register_dataclass
@dataclass
class Own:
    """A class with a position and no other field known to jztree."""

    pos: Any
    table: Any
    flag: Any


def test_user_classes_without_num() -> None:
    part = Own(jnp.asarray(oracles.uniform(6, 2)), jnp.arange(3.0), jnp.arange(6) % 2 == 0)
    assert data.get_num(part) == 6
    padded = data.pad_particles(part, 2)
    assert padded.pos.shape == (8, 2)
    assert padded.flag.shape == (8,)
    assert padded.table.shape == (3,)
    assert data.replace_num(part, 3) is part


def test_arrays_count_as_particles() -> None:
    pos = jnp.zeros((6, 2))
    assert data.get_pos(pos) is pos
    assert data.get_num(pos) == 6
    assert data.pad_particles(pos, 2).shape == (8, 2)


def catalogue(count: list[int], rows: int) -> data.FofCatalogue:
    padded = np.pad(np.asarray(count, np.int32), (0, rows - len(count)))
    used = np.arange(rows) < len(count)
    name = np.where(used, np.arange(rows), 0).astype(np.float32)
    columns = data.FofCatalogue(
        ngroups=np.int32(len(count)),
        count=padded,
        offset=np.where(used, np.cumsum(padded) - padded, 0).astype(np.int32),
        com_pos=np.stack([name, name], axis=1),
        com_inertia_radius=name,
        max_radius=name,
        mass=padded.astype(np.float32),
    )
    return jax.tree.map(jnp.asarray, columns)


def test_squeeze_catalogue_drops_unused_rows() -> None:
    squeezed = data.squeeze_catalogue(catalogue([5, 9, 2], 7))
    assert squeezed.ngroups == 3
    assert squeezed.count.tolist() == [5, 9, 2]
    assert squeezed.com_pos.shape == (3, 2)
    assert squeezed.com_vel is None
    assert data.squeeze_catalogue(catalogue([], 4)).count.shape == (0,)


def catalogues_of_ranks(array: Any = jnp.stack) -> data.FofCatalogue:
    """Return catalogues of three ranks, with two groups, none, and one."""
    ranks = [catalogue([5, 9], 4), catalogue([], 4), catalogue([3], 4)]
    return jax.tree.map(lambda *leaves: array(leaves), *ranks)


@pytest.mark.parametrize("array", [jnp.stack, np.stack], ids=["jax", "numpy"])
def test_squeeze_catalogue_joins_ranks(array: Any) -> None:
    joined = data.squeeze_catalogue(catalogues_of_ranks(array))
    assert joined.ngroups == 3
    assert joined.count.tolist() == [5, 9, 3]
    assert joined.offset.tolist() == [0, 5, 0]
    assert joined.com_pos.tolist() == [[0, 0], [1, 1], [0, 0]]
    assert joined.mass.dtype == np.float32
    assert joined.com_vel is None


@pytest.mark.parametrize("nparts", [[20, 7, 4], [2**31 - 1, 2**31 - 1, 3]], ids=["few", "many"])
def test_squeeze_catalogue_with_global_offsets(nparts: list[int]) -> None:
    joined = data.squeeze_catalogue(catalogues_of_ranks(), offset_mode="global", nparts=np.array(nparts, np.int32))
    assert joined.offset.dtype == np.int64
    assert joined.offset.tolist() == [0, 5, nparts[0] + nparts[1]]
    assert joined.count.tolist() == [5, 9, 3]


def test_squeeze_catalogue_of_one_rank_with_global_offsets() -> None:
    cata = catalogue([5, 9], 4)
    assert data.squeeze_catalogue(cata, offset_mode="global", nparts=20).offset.tolist() == [0, 5]
    alone = jax.tree.map(lambda leaf: leaf[None], cata)
    assert data.squeeze_catalogue(alone, offset_mode="global", nparts=jnp.array([20])).offset.tolist() == [0, 5]


def test_squeeze_catalogue_inside_a_host_callback() -> None:
    seen = []
    jax.jit(lambda cata: jax.debug.callback(lambda c: seen.append(data.squeeze_catalogue(c)), cata))(catalogue([5], 4))
    jax.effects_barrier()
    assert seen[0].ngroups == 1
    assert isinstance(seen[0].count, np.ndarray)


def test_squeeze_catalogue_with_invalid_arguments_raises() -> None:
    with pytest.raises(ValueError, match=r"nparts=part\.num"):
        data.squeeze_catalogue(catalogues_of_ranks(), offset_mode="global")
    with pytest.raises(ValueError, match=r"shape \(2,\).*3 rank"):
        data.squeeze_catalogue(catalogues_of_ranks(), offset_mode="global", nparts=[1, 2])
    with pytest.raises(ValueError, match="catalogue of every rank"):
        data.squeeze_catalogue(catalogue([5], 4), offset_mode="global", nparts=[1, 2])
    with pytest.raises(ValueError, match="'rank' or 'global', not 'local'"):
        data.squeeze_catalogue(catalogue([5], 4), offset_mode="local")


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_sort_catalogue_puts_the_largest_first_and_keeps_ties_in_order(jit: bool) -> None:
    sort = jax.jit(data.sort_catalogue) if jit else data.sort_catalogue
    cata = sort(catalogue([5, 9, 2, 9, 5], 8))
    assert cata.count.tolist() == [9, 9, 5, 5, 2, 0, 0, 0]
    assert cata.max_radius.tolist()[:5] == [1, 3, 0, 4, 2]
    assert cata.com_pos[:5, 1].tolist() == [1, 3, 0, 4, 2]
    assert cata.offset.tolist()[:5] == [5, 16, 0, 25, 14]
    assert int(cata.ngroups) == 5
    assert cata.com_vel is None
