"""Merger trees, compared with recursive functions of the definitions."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from jztree_utils.trees import LinkedOutput, MergerTrees, build_trees, check_trees

Key = tuple[int, int]  # snapshot and subhalo


def random_outputs(seed: int, sizes: list[int], skipped: float = 0.1) -> list[LinkedOutput]:
    """Return outputs with random links, groups and masses; some masses are equal."""
    random = np.random.default_rng(seed)
    outputs = []
    for i, size in enumerate(sizes):
        skips = (random.random(size) < skipped) & (i + 2 < len(sizes))
        available = np.asarray([*sizes, 0, 0])[i + 1 + skips]
        linked = (random.random(size) < 0.9) & (available > 0)
        descendant = np.where(linked, random.integers(0, np.maximum(available, 1)), -1)
        group = random.integers(-1, max(size // 3, 1), size)
        mass = random.integers(1, 20, size)
        outputs.append(LinkedOutput(snapshot=3 * i, group=group, mass=mass, descendant=descendant, skips=skips))
    return outputs


def slow_links(outputs: list[LinkedOutput]) -> dict[Key, Key]:
    """Return the descendant of each subhalo that has one."""
    links = {}
    for i, output in enumerate(outputs):
        for subhalo, descendant in enumerate(output.descendant.tolist()):
            skips = output.skips is not None and output.skips[subhalo]
            if descendant >= 0:
                links[output.snapshot, subhalo] = outputs[i + 1 + skips].snapshot, descendant
    return links


def assert_trees(trees: MergerTrees, outputs: list[LinkedOutput]) -> None:
    links, keys = slow_links(outputs), list(zip(trees.snapshot.tolist(), trees.subhalo.tolist(), strict=True))
    mass = {(output.snapshot, i): float(m) for output in outputs for i, m in enumerate(output.mass)}
    group = {(output.snapshot, i): int(g) for output in outputs for i, g in enumerate(output.group)}
    assert sorted(keys) == sorted(mass)
    progenitors: dict[Key, list[Key]] = {key: [] for key in keys}
    for key, descendant in links.items():
        progenitors[descendant].append(key)

    def history(key: Key) -> float:
        return mass[key] + max(map(history, progenitors[key]), default=0.0)

    def branch(key: Key) -> list[Key]:
        ordered = sorted(progenitors[key], key=lambda progenitor: (-history(progenitor), progenitor))
        return [key, *(row for progenitor in ordered for row in branch(progenitor))]

    assert [history(key) for key in keys] == trees.mass_history.tolist()
    for i, key in enumerate(keys):
        rows = branch(key)
        assert keys[i : i + len(rows)] == rows
        assert trees.branch(i).tolist() == list(range(i, i + len(rows)))
        assert keys[trees.root[i]] == key or trees.descendant[i] >= 0
        descendant = trees.descendant[i]
        assert (keys[descendant] if descendant >= 0 else None) == links.get(key)
        main = [keys[row] for row in trees.main_branch(i)]
        assert main[0] == key
        assert all(links[later] == earlier for earlier, later in itertools.pairwise(main))
        assert not progenitors[main[-1]]
        alone = group[key] < 0
        in_group = [k for k in group if k[0] == key[0] and group[k] == group[key] and not alone] or [key]
        assert keys[trees.first_in_group[i]] == min(in_group)
        after = [k for k in in_group if k > key]
        following = trees.next_in_group[i]
        assert (keys[following] if following >= 0 else None) == (min(after) if after else None)
    assert len({tree for i, tree in enumerate(trees.tree) if trees.descendant[i] < 0}) == trees.num_trees


@pytest.mark.fast
@pytest.mark.parametrize(
    "sizes", [[], [0], [1], [0, 0, 3], [4, 0, 5], [5, 1, 1, 1], [9, 8, 7, 9, 6], [30, 25, 20, 15, 12, 9]]
)
def test_trees_follow_their_definitions(sizes: list[int]) -> None:
    for seed in range(4):
        outputs = random_outputs(seed, sizes)
        trees = build_trees(outputs)
        assert len(trees) == sum(sizes)
        assert_trees(trees, outputs)


@pytest.mark.fast
def test_smallest_trees_are_connected_by_groups_and_links_alone() -> None:
    """Two hosts and the subhalo of the first one: the progenitor of the subhalo joins the tree of this host."""
    outputs = [
        LinkedOutput(snapshot=0, group=np.array([0, 1, 2]), mass=np.ones(3), descendant=np.array([0, 1, 2])),
        LinkedOutput(snapshot=1, group=np.array([0, 0, 1]), mass=np.ones(3), descendant=np.full(3, -1)),
    ]
    trees = build_trees(outputs)
    assert trees.num_trees == 2
    assert trees.tree.tolist() == [0, 0, 0, 0, 1, 1]
    assert trees.root.tolist() == [0, 0, 2, 2, 4, 4]


@pytest.mark.fast
def test_many_groups_in_a_chain_are_one_tree() -> None:
    n = 5000
    order = np.random.default_rng(1).permutation(n)
    group = np.empty(n, int)
    group[order] = np.arange(n) // 2
    link = np.empty(n, int)
    link[order] = (np.arange(n) + 1) // 2
    outputs = [
        LinkedOutput(snapshot=0, group=group, mass=np.ones(n), descendant=link),
        LinkedOutput(snapshot=1, group=np.arange(n), mass=np.ones(n), descendant=np.full(n, -1)),
    ]
    trees = build_trees(outputs)
    assert np.diff(trees.starts).max() == n + n // 2 + 1


# Each damage of one column, and the reported problem.
DAMAGES = {
    "descendant": "descendant",
    "first_progenitor": "progenitor",
    "next_progenitor": "progenitor",
    "last_progenitor": "branch|follow",
    "main_leaf": "main branch",
    "root": "root",
    "first_in_group": "group|another tree",
    "next_in_group": "group|another tree",
    "subhalo": "occurs again|wrong",
    "mass": "mass history",
}


@pytest.mark.fast
@pytest.mark.parametrize("name", DAMAGES)
def test_check_finds_each_damage(name: str) -> None:
    trees = build_trees(random_outputs(1, [12, 11, 10, 9]))
    column = getattr(trees, name)
    check_trees(trees)
    for row in range(len(trees)):
        damaged = column.copy()
        damaged[row] = damaged[(row + 7) % len(trees)]
        if name == "subhalo":
            damaged[row] = trees.subhalo[np.flatnonzero(trees.snapshot == trees.snapshot[row])[0]]
        if damaged[row] != column[row]:
            with pytest.raises(ValueError, match=DAMAGES[name]):
                check_trees(replace(trees, **{name: damaged}))


@pytest.mark.fast
def test_invalid_links_raise() -> None:
    first, second = random_outputs(1, [4, 3])
    with pytest.raises(ValueError, match="follows snapshot 3"):
        build_trees([second, first])
    with pytest.raises(ValueError, match="is 3, but its output has 3 subhaloes"):
        build_trees([replace(first, descendant=np.array([0, 3, 1, 1])), second])
    with pytest.raises(ValueError, match="but its output has 0 subhaloes"):
        build_trees([first, replace(second, descendant=np.zeros(3, int))])
    with pytest.raises(ValueError, match="mass of snapshot 0 has shape"):
        build_trees([replace(first, mass=np.ones(3)), second])


@pytest.mark.fast
@pytest.mark.parametrize(
    ("column", "value"),
    [("mass", np.nan), ("mass", -1.0), ("mass", np.inf), ("descendant", -2), ("descendant", 0.5), ("group", -2)],
)
def test_invalid_values_of_a_subhalo_are_named(column: str, value: float) -> None:
    first, second = random_outputs(1, [4, 3])
    values = np.where(np.arange(4) == 2, value, getattr(first, column))
    with pytest.raises(ValueError, match=f"{column} of subhalo [02] of snapshot 0 is .*; it must be"):
        build_trees([replace(first, **{column: values}), second])


@pytest.mark.fast
def test_starts_that_do_not_ascend_to_the_number_of_subhaloes_are_found() -> None:
    trees = build_trees(random_outputs(1, [12, 11, 10, 9]))
    n, starts = len(trees), trees.starts
    for wrong in (starts[:-1], starts[1:], np.append(starts, n), np.append(starts, n + 1), starts[::-1], starts[:0]):
        with pytest.raises(ValueError, match="starts must ascend from 0"):
            check_trees(replace(trees, starts=wrong))
