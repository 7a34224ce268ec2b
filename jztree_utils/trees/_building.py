"""Build merger trees from the links between outputs."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ._checking import check_trees
from ._merger_trees import LinkedOutput, MergerTrees


def build_trees(outputs: Sequence[LinkedOutput]) -> MergerTrees:
    """Build merger trees from the subhaloes in all outputs and their descendants, and check the result.

    The main branch of a subhalo leads through the progenitors with the largest mass history. This is the sum of the
    masses on a main branch (De Lucia & Blaizot 2007). Of equal histories, that of the earlier subhalo counts first.
    Each step is a NumPy operation on all rows of an output.

    Args:
        outputs: The outputs in the order of time.

    Returns:
        The trees.

    Raises:
        ValueError: If snapshots are not in the order of time, if a link leads to a subhalo that does not exist, or if a
            column has an invalid length or value.

    Examples:
        >>> from jztree_utils import trees
        >>> first = trees.LinkedOutput(snapshot=7, group=np.array([0, 1, 1]), mass=np.array([5, 4, 1]),
        ...                            descendant=np.array([0, 0, -1]))
        >>> last = trees.LinkedOutput(snapshot=8, group=np.array([0]), mass=np.array([9]), descendant=np.array([-1]))
        >>> forest = trees.build_trees([first, last])
        >>> forest.snapshot, forest.descendant, forest.first_progenitor
        (array([8, 7, 7, 7]), array([-1,  0,  0, -1]), array([ 1, -1, -1, -1]))
    """
    table = _joined(outputs)
    history = _mass_histories(table)
    progenitors = _progenitor_order(table, history)
    links = _progenitor_links(table, progenitors)
    size, leaf = _branches(table, links.first)
    root = _from_descendants(table, np.arange(len(table.mass)), lambda rows, above: above)
    first_in_group, next_in_group = _group_links(table)
    place, starts = _places(table, progenitors, size, root, first_in_group)
    order = np.argsort(place)

    def moved(rows: np.ndarray) -> np.ndarray:
        """Return a column of rows of the joined outputs as rows of the trees."""
        rows = rows[order]
        return np.where(rows < 0, -1, place[rows])

    trees = MergerTrees(
        snapshot=table.snapshot[order],
        subhalo=table.subhalo[order],
        group=table.group[order],
        mass=table.mass[order],
        mass_history=history[order],
        descendant=moved(table.descendant),
        first_progenitor=moved(links.first),
        next_progenitor=moved(links.next),
        last_progenitor=np.arange(len(order)) + size[order] - 1,
        main_leaf=moved(leaf),
        root=moved(root),
        first_in_group=moved(first_in_group),
        next_in_group=moved(next_in_group),
        skips=table.skips[order],
        starts=starts,
        order=order,
    )
    check_trees(trees)
    return trees


class _Table(NamedTuple):
    """The joined subhaloes, ``(n,)`` each. ``descendant`` is a row; ``starts`` begin the outputs."""

    snapshot: np.ndarray
    subhalo: np.ndarray
    group: np.ndarray
    mass: np.ndarray
    descendant: np.ndarray
    skips: np.ndarray
    starts: np.ndarray

    def outputs(self) -> list[slice]:
        """Return the rows of each output."""
        return [slice(start, end) for start, end in pairwise(self.starts.tolist())]


class _Progenitors(NamedTuple):
    """The first progenitor and the next progenitor of the same descendant, ``(n,)`` rows, -1 for none."""

    first: np.ndarray
    next: np.ndarray


def _joined(outputs: Sequence[LinkedOutput]) -> _Table:
    """Check and join the outputs."""
    sizes = [len(output.group) for output in outputs]
    starts = np.cumsum([0, *sizes])
    for earlier, output in pairwise(outputs):
        if not earlier.snapshot < output.snapshot:
            raise ValueError(
                f"snapshot {output.snapshot} follows snapshot {earlier.snapshot}; give the outputs in the order of "
                "time, with rising numbers."
            )
    parts = [_checked(output, i, sizes) for i, output in enumerate(outputs)]
    linked, skipping = (np.concatenate([part[i] for part in parts] or [np.zeros(0, int)]) for i in (0, 1))
    # The next output of each row, or the one after it.
    target = np.repeat(np.arange(len(sizes)), sizes) + 1 + skipping
    descendant = np.where(linked < 0, -1, linked + starts[np.minimum(target, len(sizes))])
    return _Table(
        snapshot=np.repeat(np.asarray([output.snapshot for output in outputs], np.int64), sizes),
        subhalo=np.arange(starts[-1]) - np.repeat(starts[:-1], sizes),
        group=_column([output.group for output in outputs], np.int64),
        mass=_column([output.mass for output in outputs], np.float64),
        descendant=descendant,
        skips=skipping > 0,
        starts=starts,
    )


def _column(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.asarray(part, dtype) for part in parts]) if parts else np.zeros(0, dtype)


def _checked(output: LinkedOutput, number: int, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the descendants of an output, int64, and 1 for each that skips an output."""
    rows = sizes[number]
    skips = np.zeros(rows, bool) if output.skips is None else output.skips
    columns = {"group": output.group, "mass": output.mass, "descendant": output.descendant, "skips": skips}
    for name, column in columns.items():
        if np.shape(column) != (rows,):
            raise ValueError(
                f"{name} of snapshot {output.snapshot} has shape {np.shape(column)}; it must have one number per "
                f"subhalo, ({rows},), like group."
            )
        if rows and name in ("group", "descendant"):
            values = np.asarray(column)
            is_valid = (values >= -1) & (values.dtype.kind in "iu")
            _check_values(output.snapshot, name, values, is_valid, "an integer of at least -1")
    mass = np.asarray(output.mass)
    _check_values(output.snapshot, "mass", mass, (mass >= 0) & np.isfinite(mass), "finite and not negative")
    descendant = np.asarray(output.descendant, np.int64)
    skipping = np.where(descendant >= 0, np.asarray(skips, np.int64), 0)
    available = np.asarray([*sizes, 0, 0])[number + 1 + skipping]
    if (wrong := np.flatnonzero(descendant >= available)).size:
        row = wrong[0]
        raise ValueError(
            f"The descendant of subhalo {row} of snapshot {output.snapshot} is {descendant[row]}, but its output has "
            f"{available[row]} subhaloes; find the descendants in the outputs that the trees contain."
        )
    return descendant, skipping


def _check_values(snapshot: int, name: str, values: np.ndarray, is_valid: np.ndarray, valid: str) -> None:
    """Raise ValueError if a value is not valid. ``valid`` describes valid values."""
    if not is_valid.all():
        row = int(np.argmin(is_valid))
        raise ValueError(f"{name} of subhalo {row} of snapshot {snapshot} is {values[row]}; it must be {valid}.")


def _mass_histories(table: _Table) -> np.ndarray:
    history = table.mass.copy()
    largest = np.zeros(len(history))
    for rows in table.outputs():
        history[rows] += largest[rows]
        linked = _linked(table, rows)
        np.maximum.at(largest, table.descendant[linked], history[linked])
    return history


def _linked(table: _Table, rows: slice) -> np.ndarray:
    """Return the rows of an output that have a descendant."""
    return rows.start + np.flatnonzero(table.descendant[rows] >= 0)


def _progenitor_order(table: _Table, history: np.ndarray) -> np.ndarray:
    """Return the rows that have a descendant: progenitor lists one after the other, the largest history first."""
    order = np.lexsort((-history, table.descendant))
    return order[np.searchsorted(table.descendant[order], 0) :]


def _progenitor_links(table: _Table, progenitors: np.ndarray) -> _Progenitors:
    first, following = (np.full(len(table.mass), -1) for _ in range(2))
    descendant = table.descendant[progenitors]
    begins = np.append(True, descendant[1:] != descendant[:-1])[: len(progenitors)]
    first[descendant[begins]] = progenitors[begins]
    continued = np.flatnonzero(~begins)
    following[progenitors[continued - 1]] = progenitors[continued]
    return _Progenitors(first, following)


def _branches(table: _Table, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of rows of the branch of each row, and the end of its main branch."""
    size, leaf = np.ones(len(table.mass), np.int64), np.arange(len(table.mass))
    for rows in table.outputs():
        leaf[rows] = np.where(first[rows] >= 0, leaf[first[rows]], leaf[rows])
        linked = _linked(table, rows)
        np.add.at(size, table.descendant[linked], size[linked])
    return size, leaf


def _from_descendants(table: _Table, values: np.ndarray, combine: Callable[..., np.ndarray]) -> np.ndarray:
    """Replace ``values`` of rows with descendants, from the latest output to the first.

    Args:
        table: The subhaloes.
        values: ``(n,)``.
        combine: Takes rows of one output, and the final values of their descendants, and returns their values.
    """
    for rows in reversed(table.outputs()):
        linked = _linked(table, rows)
        values[linked] = combine(linked, values[table.descendant[linked]])
    return values


def _group_links(table: _Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the first subhalo of the group of each row, and the next subhalo of its group."""
    rows = np.arange(len(table.mass))
    group = np.where(table.group < 0, -1 - table.subhalo, table.group)  # a subhalo without a group is alone
    order = np.lexsort((rows, group, table.snapshot))
    begins = np.append(True, (np.diff(group[order]) != 0) | (np.diff(table.snapshot[order]) != 0))[: len(rows)]
    first, following = np.empty_like(rows), np.full(len(rows), -1)
    first[order] = order[np.maximum.accumulate(np.where(begins, rows, 0))]
    continued = np.flatnonzero(~begins)
    following[order[continued - 1]] = order[continued]
    return first, following


def _places(
    table: _Table, progenitors: np.ndarray, size: np.ndarray, root: np.ndarray, first_in_group: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each subhalo in the trees, and the first row of each tree and the number of rows."""
    n = len(table.mass)
    # A branch begins after the branches of the progenitors before it in the list.
    sizes, descendant = size[progenitors], table.descendant[progenitors]
    before = np.cumsum(sizes) - sizes
    begins = np.append(True, descendant[1:] != descendant[:-1])[: len(progenitors)]
    offset = np.zeros(n, np.int64)
    offset[progenitors] = 1 + before - np.maximum.accumulate(np.where(begins, before, 0))
    # The latest root comes first, and trees are in the order of their first roots.
    roots = np.flatnonzero(table.descendant < 0)
    roots = roots[np.lexsort((table.subhalo[roots], -table.snapshot[roots]))]
    label = np.full(n, -1)
    label[roots] = np.arange(len(roots))
    tree = _connected(len(roots), label[root], label[root[first_in_group]])
    order = np.argsort(tree, kind="stable")
    starts = np.cumsum(size[roots[order]]) - size[roots[order]]
    place = np.zeros(n, np.int64)
    place[roots[order]] = starts
    place = _from_descendants(table, place, lambda rows, above: above + offset[rows])
    begins_tree = np.append(True, np.diff(tree[order]) != 0)[: len(order)]
    return place, np.append(starts[begins_tree], n)


def _connected(number: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the smallest vertex that is connected with each of ``number`` vertices by edges ``a`` to ``b``."""
    label = np.arange(number)
    while True:
        ends = label[a], label[b]
        lower = np.minimum(*ends)
        hooked = label.copy()
        for end in ends:
            np.minimum.at(hooked, end, lower)
        while not np.array_equal(jumped := hooked[hooked], hooked):
            hooked = jumped
        if np.array_equal(hooked, label):
            return label
        label = hooked
