"""Merger trees of planted haloes with known histories, and of a small N-body run against brute-force matching."""

import itertools

import numpy as np
import pytest
from links.test_descendants import slow_links

import jztree as jz
from jztree.links import SubhaloMembers, Weights
from jztree_utils.trees import LinkedOutput, MergerTrees, OutputMembers, build_trees, link_outputs
from trees.particle_mesh import outputs_of_run

SIZES = {"host": 300, "merging": 60, "passing": 80, "alone": 50}
NAMES = list(SIZES)
FIRST = dict(zip(NAMES, np.cumsum([0, *SIZES.values()]).tolist(), strict=False))
# The output in which one halo is gone, and the one in which another is in the centre of the host.
MERGED, PASSING = 4, 2


def planted_outputs(seed: int = 1, snapshots: int = 6) -> list[OutputMembers]:
    """Return haloes that keep their particles, which all outputs hold in another order.

    One halo merges with the host in output MERGED. The finder loses another one in output PASSING, and gives its
    particles to the host. All outputs have 500 particles without a halo, and haloes lose some of their particles.
    """
    random = np.random.default_rng(seed)
    total = sum(SIZES.values())
    names = random.choice(2**60, total + 500, replace=False).astype(np.uint64)
    energy = np.concatenate([-np.arange(size, 0, -1.0) for size in SIZES.values()])
    outputs = []
    for snapshot in range(snapshots):
        owner = np.repeat(np.arange(len(SIZES)), list(SIZES.values()))
        if snapshot >= MERGED:
            owner[owner == NAMES.index("merging")] = 0
        if snapshot == PASSING:
            owner[owner == NAMES.index("passing")] = 0
        bound = np.where(random.random(total) < 0.1 * (energy > -0.3 * SIZES["alone"]), -1, owner)
        alive = np.unique(owner)
        subhalo = np.concatenate([np.where(bound < 0, -1, np.searchsorted(alive, bound)), np.full(500, -1)])
        order = random.permutation(total + 500)
        energies = np.concatenate([energy * random.uniform(0.9, 1.1, total), random.random(500)])
        members = SubhaloMembers(names[order], subhalo[order], energies[order].astype(np.float32))
        outputs.append(OutputMembers(members, len(alive)))
    return outputs


def trees_of(outputs: list[OutputMembers], groups: list[np.ndarray] | None = None) -> MergerTrees:
    linked = []
    for i, (output, links) in enumerate(zip(outputs, link_outputs(outputs), strict=True)):
        subhalo = np.asarray(output.members.subhalo)
        mass = np.bincount(subhalo[subhalo >= 0], minlength=output.num_subhaloes)
        group = np.arange(output.num_subhaloes) if groups is None else groups[i]
        linked.append(LinkedOutput(snapshot=i, group=group, mass=mass, descendant=links.subhalo, skips=links.skips))
    return build_trees(linked)


def branch_of(trees: MergerTrees, subhalo: int) -> list[tuple[int, int]]:
    """Return the snapshots and subhaloes of the main branch of a subhalo of the last output."""
    row = int(np.flatnonzero((trees.snapshot == trees.snapshot.max()) & (trees.subhalo == subhalo))[0])
    rows = trees.main_branch(row)
    return list(zip(trees.snapshot[rows].tolist(), trees.subhalo[rows].tolist(), strict=True))


def test_planted_haloes_have_their_histories() -> None:
    trees = trees_of(planted_outputs())
    host, passing, alone = range(3)  # in the last output
    assert branch_of(trees, host) == [(s, 0) for s in (5, 4, 3, 2, 1, 0)]
    assert branch_of(trees, passing) == [(5, 1), (4, 1), (3, 2), (1, 2), (0, 2)]
    assert branch_of(trees, alone) == [(5, 2), (4, 2), (3, 3), (2, 2), (1, 3), (0, 3)]
    merger = np.flatnonzero((trees.snapshot == MERGED - 1) & (trees.subhalo == 1))[0]
    assert trees.snapshot[trees.descendant[merger]] == MERGED
    assert trees.subhalo[trees.descendant[merger]] == 0
    lost = np.flatnonzero(trees.skips)
    assert (trees.snapshot[lost].tolist(), trees.subhalo[lost].tolist()) == ([PASSING - 1], [2])
    assert trees.num_trees == 3


def test_missing_output_keeps_histories() -> None:
    outputs = planted_outputs()
    del outputs[3]
    trees = trees_of(outputs)
    assert branch_of(trees, 0) == [(s, 0) for s in (4, 3, 2, 1, 0)]
    assert branch_of(trees, 1) == [(4, 1), (3, 1), (1, 2), (0, 2)]


def test_order_of_the_particles_has_no_effect() -> None:
    """The seeds of the shuffles differ only if the particles do, so shuffle the same particles again."""
    outputs = planted_outputs()
    orders = [np.random.default_rng(9).permutation(len(output.members.id)) for output in outputs]
    shuffled = [
        output._replace(members=SubhaloMembers(*(column[order] for column in (m.id, m.subhalo, m.energy))))
        for output, order in zip(outputs, orders, strict=True)
        for m in [output.members]
    ]
    for links, reordered in zip(link_outputs(outputs), link_outputs(shuffled), strict=True):
        for column, again in zip(links, reordered, strict=True):
            np.testing.assert_array_equal(column, again)


@pytest.mark.fast
def test_no_outputs_have_no_links() -> None:
    assert link_outputs([]) == []
    (links,) = link_outputs(planted_outputs()[:1])
    assert links.subhalo.tolist() == [-1] * 4


@pytest.mark.fast
def test_invalid_members_name_their_output() -> None:
    first, second = planted_outputs()[:2]
    repeated = np.where(np.arange(len(second.members.id)) == 1, second.members.id[0], second.members.id)
    members = SubhaloMembers(repeated, second.members.subhalo, second.members.energy)
    with pytest.raises(ValueError, match="later is output 1: 1 particles of later have the identifier"):
        link_outputs([first, OutputMembers(members, second.num_subhaloes)])
    with pytest.raises(ValueError, match=r"A particle of output 1 is in subhalo .*, but num_subhaloes is 1"):
        link_outputs([first, OutputMembers(second.members, 1)])


@pytest.mark.long
@pytest.mark.parametrize("weights", ["lhalotree", "sublink"])
def test_groups_of_a_run_link_like_brute_force(weights: Weights) -> None:
    """Groups are matched as if they were subhaloes, bound most in their centres."""
    outputs = []
    for part in outputs_of_run():
        labels = np.asarray(jz.group_labels(part.pos, 0.2 / 32, boxsize=1.0))
        _, inverse, count = np.unique(labels, return_inverse=True, return_counts=True)
        number = np.where(count >= 10, np.cumsum(count >= 10) - 1, -1)
        density = np.asarray(jz.knn_density(part.pos, 8, boxsize=1.0))
        outputs.append(OutputMembers(SubhaloMembers(part.id, number[inverse], -density), int((count >= 10).sum())))
    assert outputs[-1].num_subhaloes > 40
    links = link_outputs(outputs, weights=weights, skip=False)
    for (earlier, later), link in zip(itertools.pairwise(outputs), links, strict=False):
        expected, _ = slow_links(earlier.members, later.members, earlier.num_subhaloes, weights)
        np.testing.assert_array_equal(link.subhalo, expected)
    assert np.mean(np.concatenate([link.subhalo for link in links[:-1]]) >= 0) > 0.8
    assert trees_of(outputs).num_trees > 20
