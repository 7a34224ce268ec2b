"""Checks of subhaloes by brute force: correct results pass, and each planted error is found."""

from dataclasses import replace
from unittest import mock

import numpy as np

import jztree as jz
from jztree_utils import io, verify


def test_subhaloes_with_unbound_particles_or_particles_of_others_are_found() -> None:
    random, physics = np.random.default_rng(4), {"softening": 0.01, "hubble": 0.1, "scale_factor": 0.5}
    pos = np.concatenate(
        [random.normal(centre, width, (150, 3)) for centre, width in ((0, 0.1), (0.6, 0.04), (5, 0.1))]
    )
    part = jz.data.ParticleData(
        pos=pos.astype(np.float32), vel=random.normal(0, 0.05, (450, 3)).astype(np.float32), mass=0.01
    )
    grouped, cata = jz.friends_of_friends(part, 0.5)
    result = jz.subhaloes(grouped, cata, 1.0, **physics)
    assert int(result.num) >= 3
    assert verify.subhaloes(grouped, cata, result, 1.0, **physics).passed
    assert "not bound to it" in str(verify.subhaloes(grouped, cata, result, 0.001, **physics))
    fast = replace(grouped, vel=np.array(grouped.vel))
    fast.vel[int(result.most_bound[0])] += 30
    assert "not bound to it" in str(verify.subhaloes(fast, cata, result, 1.0, **physics))
    assert "lower energy" in str(verify.subhaloes(grouped, cata, _with_other(result, "most_bound"), 1.0, **physics))
    label = np.array(result.subhalo)
    label[label == 1] = 0
    merged = replace(result, subhalo=label)
    assert "differ from the numbers" in str(verify.subhaloes(grouped, cata, merged, 1.0, **physics))
    label = np.array(result.subhalo)
    i, j = np.argmax(label == 0), np.argmax(label == int(result.num) - 1)
    label[[i, j]] = label[[j, i]]
    swapped = replace(result, subhalo=label)
    assert "of another group" in str(verify.subhaloes(grouped, cata, swapped, 1.0, **physics))
    deep = replace(result, depth=np.asarray(result.depth) + 1)
    assert "not form a hierarchy" in str(verify.subhaloes(grouped, cata, deep, 1.0, **physics))


def test_nan_and_members_in_another_order_are_found() -> None:
    random = np.random.default_rng(4)
    pos, vel = (random.normal(0, width, (150, 3)).astype(np.float32) for width in (0.1, 0.05))
    grouped, cata = jz.friends_of_friends(jz.data.ParticleData(pos=pos, vel=vel, mass=0.01), 0.5)
    result = jz.subhaloes(grouped, cata, 1.0, softening=0.01)
    order = io.order_by_binding(np.zeros(150, int), np.asarray(result.subhalo), np.asarray(result.energy))
    grouped = jz.data.ParticleData(pos=grouped.pos[order], vel=grouped.vel[order], mass=0.01)
    rows = {"subhalo": np.asarray(result.subhalo)[order], "most_bound": np.argsort(order)[result.most_bound]}
    result = replace(result, **rows)

    def faults(part: jz.data.ParticleData, changed: jz.Subhaloes) -> str:
        return "".join(verify.subhaloes(part, cata, changed, 1.0, softening=0.01, is_ordered=True).faults)

    assert not faults(grouped, result)
    for name in ("pos", "vel", "mass", "com_pos", "com_vel", "vel_dispersion", "vmax", "rmax", "half_mass_radius"):
        column = np.array(getattr(result, name))
        column[0] = np.nan
        assert faults(grouped, replace(result, **{name: column})), name
    assert "first member" in faults(grouped, replace(result, most_bound=rows["most_bound"] + 1))
    bound = int(result.count[0])
    order = np.r_[0, np.arange(bound)[:0:-1], bound:150]
    reverse = jz.data.ParticleData(pos=grouped.pos[order], vel=grouped.vel[order], mass=0.01)
    assert "order of their energies" in faults(reverse, result)


def test_a_single_unbound_particle_of_a_large_subhalo_is_found() -> None:
    random = np.random.default_rng(4)
    pos = random.normal(0, 0.1, (3000, 3)).astype(np.float32)
    part = jz.data.ParticleData(pos=pos, vel=np.zeros_like(pos), mass=0.01)
    grouped, cata = jz.friends_of_friends(part, 0.5)
    result, internal = jz.subhaloes(grouped, cata, 1.0, softening=0.01), np.zeros(3000)
    internal[np.flatnonzero(np.asarray(result.subhalo) == 0)[1500]] = 1e12
    with mock.patch("jztree_utils.verify._subhaloes.PAIRS", 1):  # energies of a sample of the members
        check = verify.subhaloes(grouped, cata, result, 1.0, softening=0.01, internal_energy=internal)
    assert "not bound to it" in str(check)


def _with_other(result: jz.Subhaloes, column: str) -> jz.Subhaloes:
    """Return subhaloes with the row of the least bound member in a column of the first one."""
    rows = np.array(getattr(result, column))
    members = np.flatnonzero(np.asarray(result.subhalo) == 0)
    rows[0] = members[np.argmax(np.asarray(result.energy)[members])]
    return replace(result, **{column: rows})


def test_no_subhaloes_pass() -> None:
    pos = np.random.default_rng(1).random((40, 3)).astype(np.float32)
    part = jz.data.ParticleData(pos=pos, vel=np.zeros_like(pos), mass=1.0)
    grouped, cata = jz.friends_of_friends(part, 1e-3, npart_min=2)
    assert verify.subhaloes(grouped, cata, jz.subhaloes(grouped, cata, 1.0), 1.0).passed
    grouped, cata = jz.friends_of_friends(part, 1.0, npart_min=2)
    assert verify.subhaloes(grouped, cata, jz.subhaloes(grouped, cata, 1.0, min_bound=41), 1.0).passed
