"""Particles of other types that join the group of their nearest primary particle, against SciPy."""

from dataclasses import dataclass, replace
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import deal, even, joined, mesh_of, uneven
from scipy.spatial import cKDTree

import jztree as jz
from jztree.config import CatalogueConfig, FofConfig
from jztree.data import ParticleData, squeeze_catalogue, squeeze_particles

_BOX, _RLINK = 1.0, 0.035
_CFG = FofConfig(catalogue=CatalogueConfig(npart_min=4))


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


@jax.tree_util.register_dataclass
@dataclass
class _Typed:
    pos: Any
    mass: Any
    id: Any
    kind: Any
    num: Any = None


def two_kinds(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    centres = rng.random((5, 3))
    primary = np.concatenate([rng.random((400, 3)), *(rng.normal(c, 0.02, (60, 3)) for c in centres)]) % 1
    second = np.concatenate([rng.random((150, 3)), *(rng.normal(c, 0.03, (80, 3)) for c in centres)]) % 1
    return primary.astype(np.float32), second.astype(np.float32)


def expected_groups(primary: np.ndarray, second: np.ndarray, within: float = 6.4) -> set[frozenset[int]]:
    """Return the members of each group of at least four. Attached particles are numbered after the primary ones."""
    wrapped = primary.astype(np.float64) % 1
    distance, nearest = cKDTree(wrapped, boxsize=1.0).query(second.astype(np.float64) % 1)
    label = np.asarray(oracles.components(primary, _RLINK, _BOX))
    own = len(primary) + np.arange(len(second))
    label = np.concatenate([label, np.where(distance <= within * _RLINK, label[nearest], own)])
    groups = [frozenset(np.flatnonzero(label == value).tolist()) for value in np.unique(label)]
    return {group for group in groups if len(group) >= 4}


def groups_of(ids: np.ndarray, cata: Any) -> set[frozenset[int]]:
    return {
        frozenset(ids[start : start + count].tolist())
        for start, count in zip(np.asarray(cata.offset), np.asarray(cata.count), strict=True)
    }


def typed(pos: np.ndarray, first: int, mass: float, kind: int) -> _Typed:
    n = len(pos)
    return _Typed(
        jnp.asarray(pos),
        np.full(n, mass, np.float32),
        np.arange(first, first + n, dtype=np.int32),
        np.full(n, kind, np.int32),
    )


def test_attached_particles_on_one_device_with_padding(random) -> None:
    primary, second = two_kinds(random)
    part, attached = typed(primary, 0, 2.0, 1), typed(second, len(primary), 0.5, 4)
    part, attached = jz.data.pad_particles(part, 7), jz.data.pad_particles(attached, 5)
    find = jax.jit(lambda a, b: jz.fof.fof_and_catalogue(a, _RLINK, _BOX, _CFG, attached=b))
    grouped, cata = find(part, [attached])
    total = len(primary) + len(second)
    assert int(grouped.num) == total
    assert grouped.pos.shape == (total + 12, 3)
    grouped, cata = squeeze_particles(grouped), squeeze_catalogue(cata)
    assert groups_of(np.asarray(grouped.id), cata) == expected_groups(primary, second)
    np.testing.assert_array_equal(np.sort(grouped.id), np.arange(total))
    for start, count, mass in zip(cata.offset, cata.count, cata.mass, strict=True):
        kind = np.asarray(grouped.kind)[start : start + count]
        assert (np.diff((kind == 4).astype(int)) >= 0).all()  # primary particles are first
        assert mass == pytest.approx(2.0 * (kind == 1).sum() + 0.5 * (kind == 4).sum())


@pytest.mark.parametrize("crowded", [pytest.param(False, marks=pytest.mark.slow), True])
def test_several_devices_give_the_groups_of_one(random, crowded: bool) -> None:
    primary, second = two_kinds(random)
    if crowded:  # all attached particles go to one rank, which needs more than its initial capacity
        second = (primary[:1] + random.normal(0, 1e-4, second.shape)).astype(np.float32) % 1
    ndev, rows = 4, 600
    parts = []
    cut = len(second) // 3  # attached particles have two types
    kinds_of = ((primary, 0, 1), (second[:cut], len(primary), 4), (second[cut:], len(primary) + cut, 5))
    for pos, first, kind in kinds_of:
        per_device = deal(pos, uneven(len(pos), ndev), rows=rows)
        mass = np.full(per_device.id.shape, 2.0 if kind == 1 else 0.5, np.float32)
        kinds = np.full(per_device.id.shape, kind, np.int32)
        parts.append(_Typed(per_device.pos, mass, per_device.id + first, kinds, per_device.num))
    find = jz.fof.fof_and_catalogue.smap(mesh_of(ndev), jit=True)
    grouped, stacked = find(parts[0], _RLINK, _BOX, _CFG, attached=parts[1:])
    nums = np.asarray(grouped.num)
    assert nums.max() - nums.min() <= 1
    cata = squeeze_catalogue(stacked, offset_mode="global", nparts=nums)
    assert groups_of(joined(grouped.id, nums), cata) == expected_groups(primary, second)
    _, single = jz.fof.fof_and_catalogue.jit(
        typed(primary, 0, 2.0, 1), _RLINK, _BOX, _CFG, attached=typed(second, len(primary), 0.5, 4)
    )
    single = squeeze_catalogue(single)
    np.testing.assert_array_equal(np.sort(cata.count), np.sort(single.count))
    np.testing.assert_allclose(np.sort(cata.mass), np.sort(single.mass), rtol=1e-6)


def twins(attached: Any, within: float | None) -> Any:
    """Yield functions that return catalogues: a plain call, the compiled twin, and one compiled by the user."""
    given = jnp.float32(_RLINK)
    yield lambda part: jz.fof.fof_and_catalogue(part, _RLINK, _BOX, _CFG, attached=attached, attach_within=within)
    yield lambda part: jz.fof.fof_and_catalogue.jit(part, _RLINK, _BOX, _CFG, attached=attached, attach_within=within)
    traced = jax.jit(lambda *args: jz.fof.fof_and_catalogue(*args, _BOX, _CFG, attached=attached, attach_within=within))
    yield lambda part: traced(part, given)


@pytest.mark.long
@pytest.mark.parametrize("within", [0.0, 0.3, 1.0])
def test_particles_outside_attach_within_join_no_group(random, within: float) -> None:
    primary, second = two_kinds(random)
    part, attached = typed(primary, 0, 2.0, 1), typed(second, len(primary), 0.5, 4)
    want = expected_groups(primary, second, within)
    assert want != expected_groups(primary, second)
    for find in twins(attached, within):
        grouped, cata = find(part)
        cata = squeeze_catalogue(cata)
        assert groups_of(np.asarray(grouped.id), cata) == want
        np.testing.assert_array_equal(np.sort(grouped.id), np.arange(len(primary) + len(second)))
    ndev = 4
    parts = [deal(pos, uneven(len(pos), ndev), rows=600) for pos in (primary, second)]
    parts[1] = replace(parts[1], id=parts[1].id + len(primary))
    find = jz.fof.fof_and_catalogue.smap(mesh_of(ndev), jit=True)
    grouped, stacked = find(parts[0], _RLINK, _BOX, _CFG, attached=parts[1], attach_within=within)
    cata = squeeze_catalogue(stacked, offset_mode="global", nparts=grouped.num)
    assert groups_of(joined(grouped.id, grouped.num), cata) == want


@pytest.mark.long
def test_attach_within_at_the_exact_distance_and_unlimited() -> None:
    """Distances are exact in float32: 0.5 is 4 linking lengths, and 0.5 + 2^-24 is more."""
    primary = np.zeros((3, 3), np.float32)
    second = np.asarray([[0.5, 0, 0], [np.nextafter(np.float32(0.5), 1), 0, 0], [-0.5, 0, 0], [9, 0, 0]], np.float32)
    part, attached = typed(primary, 0, 1.0, 1), typed(second, 3, 1.0, 0)
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=1))
    for within, count in ((4, [5, 1, 1]), (np.nextafter(4, 0), [3, 1, 1, 1, 1]), (None, [7]), (72.0, [7])):
        cata = jz.fof.fof_and_catalogue.jit(part, 0.125, 0.0, cfg, attached=attached, attach_within=within)[1]
        np.testing.assert_array_equal(squeeze_catalogue(cata).count, count)
    _, cata = jz.fof.fof_and_catalogue.jit(part, 0.125, 0.0, cfg, attached=attached)
    np.testing.assert_array_equal(squeeze_catalogue(cata).count, [6, 1])  # 0.8 is the default


def test_mass_shared_by_all_primary_particles(random) -> None:
    primary, second = two_kinds(random)
    part = ParticleData(pos=jnp.asarray(primary), mass=3.0)
    attached = ParticleData(pos=jnp.asarray(second), mass=np.linspace(0, 1, len(second), dtype=np.float32))
    grouped, cata = jz.fof.fof_and_catalogue.jit(
        part, _RLINK, _BOX, FofConfig(catalogue=CatalogueConfig(npart_min=1)), attached=attached
    )
    total = 3.0 * len(primary) + float(np.sum(attached.mass, dtype=np.float64))
    assert float(np.sum(np.asarray(cata.mass, np.float64))) == pytest.approx(total, rel=1e-5)
    assert grouped.mass.shape == (len(primary) + len(second),)


def test_empty_attached_set_changes_nothing(random) -> None:
    primary, _ = two_kinds(random)
    part, none = typed(primary, 0, 1.0, 1), typed(primary[:0], 0, 1.0, 4)
    grouped, cata = jz.fof.fof_and_catalogue.jit(part, _RLINK, _BOX, _CFG, attached=none)
    want_grouped, want = jz.fof.fof_and_catalogue.jit(part, _RLINK, _BOX, _CFG)
    np.testing.assert_array_equal(grouped.id, want_grouped.id)
    counts = (np.asarray(result.count)[: int(want.ngroups)] for result in (cata, want))
    np.testing.assert_array_equal(*counts)


@pytest.mark.parametrize("lengths", [False, True], ids=["one length", "lengths"])
@pytest.mark.parametrize("within", [6.4, None])
@pytest.mark.parametrize("ndev", [1, 2])
def test_arrays_without_rows_and_num_0_are_equal(ndev: int, within: float | None, lengths: bool) -> None:
    gpus.skip_where_kernels_cannot_raise()

    def kind(rows: int, num: int) -> Any:
        stacked = deal(np.full((num * ndev, 3), 0.5, np.float32), [num] * ndev, rows)
        return stacked if ndev > 1 else jax.tree.map(lambda leaf: leaf[0], stacked)

    def call(part: Any, attached: Any) -> Any:
        function = jz.fof.fof_and_catalogue
        mapped = function.smap(mesh_of(ndev), jit=True) if ndev > 1 else function
        rlink = np.full(part.id.shape, _RLINK, np.float32) if lengths else _RLINK
        grouped, cata = mapped(part, rlink, _BOX, cfg=_CFG, attached=[attached], attach_within=within)
        return np.sum(grouped.num), np.sum(cata.ngroups)

    for none in (kind(0, 0), kind(3, 0)):
        assert call(kind(5, 4), none) == (4 * ndev, 1)
        assert call(kind(0, 0), none) == call(kind(3, 0), none) == (0, 0)
        with pytest.raises(oracles.RUN_TIME_ERROR, match="but part has no particles"):
            call(none, kind(5, 4))


def test_float64_arrays_are_rounded_without_64_bits(random) -> None:
    pos, gas = random.random((200, 3)), random.random((90, 3))
    _, cata = jz.friends_of_friends(pos, 0.1, attached=gas, npart_min=2)
    _, expected = jz.friends_of_friends(pos.astype(np.float32), 0.1, attached=gas.astype(np.float32), npart_min=2)
    jax.tree.map(np.testing.assert_array_equal, cata, expected)


def test_mismatched_attached_particles_raise() -> None:
    part = ParticleData(pos=jnp.zeros((3, 3)), mass=1.0)
    with pytest.raises(TypeError, match="part has pos, mass, but attached has pos"):
        jz.fof.fof_and_catalogue(part, 0.1, attached=ParticleData(pos=jnp.zeros((3, 3))))
    with pytest.raises(ValueError, match="the same shape per particle"):
        jz.fof.fof_and_catalogue(part, 0.1, attached=ParticleData(pos=jnp.zeros((4, 2)), mass=1.0))
    with pytest.raises(TypeError, match="attached positions must be float32"):
        jz.fof.fof_and_catalogue(part, 0.1, attached=ParticleData(pos=jnp.zeros((4, 3), jnp.int32), mass=1.0))


@pytest.mark.long
@pytest.mark.parametrize("ndev", [1, 3])
def test_invalid_positions_of_attached_particles_are_named(random, ndev: int) -> None:
    gpus.skip_where_kernels_cannot_raise()
    primary, second = two_kinds(random)
    second[7, 1] = np.nan
    if ndev == 1:
        find, part, attached = jz.fof.fof_and_catalogue.jit, ParticleData(pos=primary), ParticleData(pos=second)
    else:
        find = jz.fof.fof_and_catalogue.smap(mesh_of(ndev), jit=True)
        part, attached = (deal(pos, uneven(len(pos), ndev), rows=800) for pos in (primary, second))
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"row \d+ of the positions of attached\[1\]"):
        jax.block_until_ready(find(part, _RLINK, _BOX, _CFG, attached=[part, attached]))


@pytest.mark.long
def test_too_small_attached_rows_raises(random) -> None:
    primary, second = two_kinds(random)
    part, attached = (deal(pos, uneven(len(pos), 4), rows=600) for pos in (primary, second))
    find = jz.fof.fof_and_catalogue.smap(mesh_of(4), jit=True)
    with pytest.raises(jz.CapacityError, match=r"particles attached to its groups.*set attached_rows"):
        find(part, _RLINK, _BOX, FofConfig(attached_rows=3), attached=attached)


@pytest.mark.long
@pytest.mark.parametrize("ndev", [1, 2])
def test_distances_are_compared_without_rounding(ndev: int) -> None:
    """In float32 the distance of the second is also 1, but it is 2**-31 larger."""
    primary = np.array([[0.0, 0.0], [64.0, 64.0]], np.float32)
    second = np.array([[1.0, 0.0], [1.0, 2.0**-15], [65.0, 64.0], [65.0, 64.0 + 2.0**-15]], np.float32)
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=1))
    for within, counts in ((2.0, [2, 2, 1, 1]), (np.nextafter(2.0, 0), [1] * 6), (np.nextafter(2.0, 3), [2, 2, 1, 1])):
        if ndev == 1:
            part, attached = (ParticleData(pos=pos) for pos in (primary, second))
            find = jz.fof.fof_and_catalogue.jit
        else:
            part, attached = (deal(pos, even(len(pos), ndev)) for pos in (primary, second))
            find = jz.fof.fof_and_catalogue.smap(mesh_of(ndev), jit=True)
        cata = find(part, 0.5, 0.0, cfg, attached=attached, attach_within=within)[1]
        assert np.sort(np.asarray(squeeze_catalogue(cata).count))[::-1].tolist() == counts


@pytest.mark.parametrize("within", [-1.0, -1e-40, np.nan, np.inf])
def test_invalid_traced_attach_within_raises(within: float) -> None:
    part = ParticleData(pos=oracles.uniform(20, 3), mass=1.0)
    find = jax.jit(lambda within: jz.fof.fof_and_catalogue(part, 0.1, attached=part, attach_within=within)[1].count)
    with pytest.raises(oracles.RUN_TIME_ERROR, match="attach_within is infinite, NaN or negative"):
        jax.block_until_ready(find(jnp.float32(within)))
