"""Merger trees: the subhaloes in all outputs, tree after tree, each branch in depth-first order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class LinkedOutput:
    """The ``s`` subhaloes of one output, and their descendants.

    Attributes:
        snapshot: The number of the output.
        group: ``(s,)`` integers, the group of each subhalo; -1 for none. The first subhalo of a group is its central.
        mass: ``(s,)``, the bound mass of each subhalo, or its number of particles.
        descendant: ``(s,)`` integers, the descendant of each subhalo in the next output, -1 for none; see
            `jztree.descendants`.
        skips: ``(s,)`` bool, whether the descendant is in the output after the next one, see
            `jztree.links.skip_output`. None means that no link skips an output.
    """

    snapshot: int
    group: np.ndarray
    mass: np.ndarray
    descendant: np.ndarray
    skips: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class MergerTrees:
    """Merger trees of the ``n`` subhaloes in all outputs. Links are rows of this table, -1 for none.

    A subhalo, its descendants and progenitors, and all subhaloes of their groups are in one tree. A tree is contiguous
    and begins with the first subhalo of its latest output. A subhalo is followed by the branch of its first progenitor,
    then by the branches of the next ones (Lemson & Springel 2006).

    Attributes:
        snapshot: ``(n,)`` int64, the number of the output.
        subhalo: ``(n,)`` int64, the subhalo in that output.
        group: ``(n,)`` int64, its group.
        mass: ``(n,)`` float64, its bound mass.
        mass_history: ``(n,)`` float64, the sum of the masses of its main branch (De Lucia & Blaizot 2007).
        descendant: ``(n,)`` int64.
        first_progenitor: ``(n,)`` int64, the progenitor with the largest mass history.
        next_progenitor: ``(n,)`` int64, the next progenitor of the same descendant, with a smaller mass history.
        last_progenitor: ``(n,)`` int64, the last row of the branch; without progenitors, the row itself.
        main_leaf: ``(n,)`` int64, the last row of the main branch, its earliest subhalo.
        root: ``(n,)`` int64, the latest descendant; without descendants, the row itself.
        first_in_group: ``(n,)`` int64, the central of the group.
        next_in_group: ``(n,)`` int64, the next subhalo of the group.
        skips: ``(n,)`` bool, whether the subhalo was lost for an output: its descendant is in the output after the next
            one.
        starts: ``(t + 1,)`` int64, the first row of each tree, and the number of rows.
        order: ``(n,)`` int64, the place of each row among the joined subhaloes of the outputs.
    """

    snapshot: np.ndarray
    subhalo: np.ndarray
    group: np.ndarray
    mass: np.ndarray
    mass_history: np.ndarray
    descendant: np.ndarray
    first_progenitor: np.ndarray
    next_progenitor: np.ndarray
    last_progenitor: np.ndarray
    main_leaf: np.ndarray
    root: np.ndarray
    first_in_group: np.ndarray
    next_in_group: np.ndarray
    skips: np.ndarray
    starts: np.ndarray
    order: np.ndarray

    def __len__(self) -> int:
        return len(self.snapshot)

    def __repr__(self) -> str:
        return f"MergerTrees({len(self)} subhaloes in {self.num_trees} trees)"

    @property
    def num_trees(self) -> int:
        """Number of trees."""
        return len(self.starts) - 1

    @property
    def tree(self) -> np.ndarray:
        """``(n,)`` int64, the tree of each row."""
        return np.repeat(np.arange(self.num_trees), np.diff(self.starts))

    def main_branch(self, row: int) -> np.ndarray:
        """Return the rows of a subhalo, its first progenitor, the first progenitor of that one, and so on."""
        return np.arange(row, self.main_leaf[row] + 1)

    def branch(self, row: int) -> np.ndarray:
        """Return the rows of a subhalo and all of its progenitors."""
        return np.arange(row, self.last_progenitor[row] + 1)
