"""The self-check of merger trees. It uses the definitions of the links, and no step of their construction."""

from __future__ import annotations

import numpy as np

from ._merger_trees import MergerTrees


def check_trees(trees: MergerTrees) -> None:
    """Check that no link is broken, that each subhalo occurs once, and that links and groups stay in one tree.

    Args:
        trees: The trees.

    Raises:
        ValueError: If a check fails. The message counts the rows and names the first one.
    """
    n, rows, starts = len(trees), np.arange(len(trees)), trees.starts
    if not (len(starts) and starts[0] == 0 and starts[-1] == n and (np.diff(starts) > 0).all()):
        raise ValueError("The merger trees are inconsistent: starts must ascend from 0 to the number of subhaloes.")
    tree = trees.tree
    linked, has_progenitor = trees.descendant >= 0, trees.first_progenitor >= 0

    def target(links: np.ndarray, column: np.ndarray, none: float = -1) -> np.ndarray:
        """Return the entry of ``column`` for each link, ``none`` without a link."""
        return np.where(links >= 0, column[links], none)

    for name in ("descendant", "first_progenitor", "next_progenitor", "first_in_group", "next_in_group"):
        links = getattr(trees, name)
        _require((links >= -1) & (links < n), f"{name} is no row of the trees", trees)
        _require((links < 0) | (target(links, tree) == tree), f"{name} is in another tree", trees)
    numbers = np.lexsort((trees.subhalo, trees.snapshot))
    repeated = (np.diff(trees.subhalo[numbers]) == 0) & (np.diff(trees.snapshot[numbers]) == 0)
    _require(~np.isin(rows, numbers[1:][repeated]), "the same subhalo occurs again", trees)
    outputs = np.unique(trees.snapshot)
    number = np.searchsorted(outputs, trees.snapshot)
    # An output without subhaloes has no rows, so a link may seem to skip fewer outputs than it does.
    later = target(trees.descendant, number) - number
    _require(~linked | ((later >= 1) & (later <= 1 + trees.skips)), "the descendant is in a wrong output", trees)
    # Each progenitor is in the list of its descendant, once.
    listed = np.concatenate([trees.first_progenitor[has_progenitor], trees.next_progenitor[trees.next_progenitor >= 0]])
    _require(np.bincount(listed, minlength=n) == linked, "the list of progenitors of its descendant lacks it", trees)
    of_first = target(trees.first_progenitor, trees.descendant)
    _require(~has_progenitor | (of_first == rows), "the first progenitor has another descendant", trees)
    of_next = target(trees.next_progenitor, trees.descendant)
    _require(
        (trees.next_progenitor < 0) | (of_next == trees.descendant), "the next progenitor has another descendant", trees
    )
    history = target(trees.first_progenitor, trees.mass_history, 0) + trees.mass
    _require(np.isclose(history, trees.mass_history, rtol=1e-12, atol=0), "the mass history has another sum", trees)
    _require(target(trees.next_progenitor, trees.mass_history, -np.inf) <= trees.mass_history,
             "the next progenitor has a larger mass history", trees)  # fmt: skip
    _require(np.where(linked, target(trees.descendant, trees.root), rows) == trees.root, "the root is wrong", trees)
    leaf = np.where(has_progenitor, target(trees.first_progenitor, trees.main_leaf), rows)
    _require(leaf == trees.main_leaf, "the main branch has another end", trees)
    _check_order(trees)
    _check_groups(trees)


def _check_order(trees: MergerTrees) -> None:
    """Check the depth-first order: branches are contiguous and lie within each other."""
    rows, last = np.arange(len(trees)), trees.last_progenitor
    first, following, above = trees.first_progenitor, trees.next_progenitor, trees.descendant
    _require((first < 0) | (first == rows + 1), "the first progenitor is not the next row", trees)
    _require((first >= 0) | (last == rows), "the branch has rows, but no progenitor", trees)
    _require((following < 0) | (following == last + 1), "the next progenitor does not follow the branch", trees)
    ends = (above < 0) | (following >= 0) | (last == np.where(above >= 0, last[above], -1))
    _require(ends, "the branch of its descendant has another end", trees)


def _check_groups(trees: MergerTrees) -> None:
    """Check that the list from the central of each group has all of its subhaloes, once."""
    rows, first, following = np.arange(len(trees)), trees.first_in_group, trees.next_in_group
    listed = np.bincount(following[following >= 0], minlength=len(trees))
    _require(listed == (first != rows), "the list of its group lacks it", trees)
    _require((following < 0) | (first[following] == first), "the next subhalo is in another group", trees)
    for name in ("snapshot", "group"):
        column = getattr(trees, name)
        _require(column[first] == column, f"the central of its group has another {name}", trees)


def _require(holds: np.ndarray, problem: str, trees: MergerTrees) -> None:
    """Raise ValueError with the problem of the first row that violates it."""
    wrong = np.flatnonzero(~holds)
    if wrong.size:
        row = wrong[0]
        raise ValueError(
            f"The merger trees are inconsistent in {wrong.size} rows: for subhalo {trees.subhalo[row]} of snapshot "
            f"{trees.snapshot[row]} in row {row}, {problem}; build them again from links of the same outputs."
        )
