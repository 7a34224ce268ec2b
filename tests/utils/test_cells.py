"""Pairs in skewed cells compared with brute force over all images, and with the lists of ASE, matscipy and vesin."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jztree_utils.cells import CellPairs, pairs_in_cell

RNG = np.random.default_rng(5)
# name: lattice vectors, periodic directions, radius. Particles are within and outside the cell.
CELLS: dict[str, tuple[Any, Any, float]] = {
    "orthogonal": ([1.0, 1.3, 0.8], True, 0.45),
    "skewed": ([[1.0, 0.0, 0.0], [0.4, 1.1, 0.0], [-0.3, 0.5, 0.9]], True, 0.4),
    "very skewed": ([[1.0, 0.0, 0.0], [2.7, 0.9, 0.0], [-1.2, 1.9, 0.7]], True, 0.3),
    "left-handed": ([[0.0, 1.0, 0.1], [1.0, 0.2, 0.0], [0.1, 0.3, 1.2]], True, 0.4),
    "radius of several cells": ([[0.3, 0.0, 0.0], [0.1, 0.4, 0.0], [0.05, -0.1, 0.35]], True, 0.7),
    "slab": ([[1.0, 0.0, 0.2], [0.4, 1.1, 0.0], [0.0, 0.1, 2.0]], [True, True, False], 0.4),
    "wire without other vectors": ([[0.0, 0.0, 0.0], [0.3, 0.8, 0.1], [0.0, 0.0, 0.0]], [False, True, False], 0.4),
    "open": ([[1.0, 0.0, 0.0], [0.4, 1.1, 0.0], [-0.3, 0.5, 0.9]], False, 0.4),
    "fcc": ([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5], [0.5, 0.5, 0.0]], True, 0.75),
    "plane": ([[1.0, 0.0], [0.7, 0.6]], True, 0.5),
}


def particles(name: str) -> np.ndarray:
    dims = len(CELLS[name][0])
    if name == "fcc":
        return np.r_[np.zeros((1, 3)), [[0.25, 0.25, 0.25], [0.25, 0.25, 0.25]]]
    number, low, high = (5, -0.5, 0.5) if name.startswith("radius") else (30, -0.8, 1.6)
    return RNG.uniform(low, high, (number, dims))


def brute_force(pos: np.ndarray, cell: Any, periodic: Any, radius: float) -> set[tuple[int, ...]]:
    """Return i, j and shift of the pairs within the radius, both ways, from all images up to a generous number."""
    dims = pos.shape[1]
    vectors = np.asarray(cell) if np.ndim(cell) == 2 else np.diag(cell)
    repeats = np.broadcast_to(periodic, dims)
    used = np.where((vectors == 0).all(axis=1)[:, None], np.eye(dims), vectors)
    # Shifts up to this number reach farther than the radius and the extent of the positions.
    extent = radius + np.linalg.norm(pos.max(axis=0) - pos.min(axis=0))
    maximum = np.where(repeats, np.ceil(extent * np.linalg.norm(np.linalg.inv(used), axis=0)), 0).astype(int)
    result = set()
    for shift in itertools.product(*(range(-m, m + 1) for m in maximum)):
        separation = pos[None] - pos[:, None] + np.asarray(shift) @ vectors
        for i, j in np.argwhere(np.sqrt((separation**2).sum(axis=-1)) <= radius):
            if i != j or any(shift):
                result.add((int(i), int(j), *shift))
    return result


def rows_of(pairs: CellPairs) -> list[tuple[int, ...]]:
    return list(map(tuple, np.c_[pairs.i, pairs.j, pairs.shift].tolist()))


@pytest.mark.parametrize("name", CELLS)
def test_pairs_equal_brute_force(name: str) -> None:
    (cell, periodic, radius), pos = CELLS[name], particles(name)
    result, expected = pairs_in_cell(pos, radius, cell, periodic, full=True), brute_force(pos, cell, periodic, radius)
    rows = rows_of(result)
    assert len(rows) > 4
    assert rows == sorted(expected), "each pair once, in order"
    vectors = np.asarray(cell) if np.ndim(cell) == 2 else np.diag(cell)
    np.testing.assert_allclose(result.vector, pos[result.j] - pos[result.i] + result.shift @ vectors, atol=1e-14)
    np.testing.assert_allclose(result.distance, np.linalg.norm(result.vector, axis=1), rtol=1e-14)

    half = rows_of(pairs_in_cell(pos, radius, cell, periodic))
    second = {(j, i, *(-s for s in shift)) for i, j, *shift in half}
    assert len(half) == len(second) == len(rows) / 2
    assert set(half) | second == set(rows)
    assert all(i < j or shift > [0] * len(shift) for i, j, *shift in half)


def test_equal_positions_are_a_pair() -> None:
    result = pairs_in_cell(np.zeros((3, 2)), 0.0, [[1.0, 0.0], [0.5, 1.0]])
    assert rows_of(result) == [(0, 1, 0, 0), (0, 2, 0, 0), (1, 2, 0, 0)]


def test_radius_is_inclusive() -> None:
    """All distances are exact in binary."""
    cell = [[1.0, 0.0], [0.5, 0.5]]
    result = pairs_in_cell(np.zeros((1, 2)), 1.0, cell, full=True)
    assert rows_of(result) == sorted(brute_force(np.zeros((1, 2)), cell, True, 1.0))
    assert (result.distance == 1.0).sum() == 4


def test_large_shifts_are_exact() -> None:
    """Positions are far outside the cell, so the numbers of j and all shifts do not fit one integer."""
    pos = np.array([[0.25, 0.5, 0.5], [2.0**30 + 0.5, 0.5, 0.5], [0.25, 2.0**31, 0.5], [0.25, 0.5, -(2.0**29) + 0.25]])
    result = pairs_in_cell(pos, 0.6, np.eye(3), full=True)
    expected = {(0, 1, -(2**30), 0, 0), (0, 2, 0, -(2**31), 0), (0, 2, 0, 1 - 2**31, 0), (0, 3, 0, 0, 2**29)}
    assert expected <= set(rows_of(result))
    assert rows_of(result) == sorted(rows_of(result))
    separation = pos[result.j] - pos[result.i] + result.shift
    np.testing.assert_array_equal(result.distance, np.sqrt((separation**2).sum(axis=1)))


def test_few_particles() -> None:
    result = pairs_in_cell(np.zeros((0, 3)), 1.0, np.eye(3))
    assert (result.i.shape, result.shift.shape, result.vector.shape) == ((0,), (0, 3), (0, 3))
    assert len(pairs_in_cell([[0.5, 0.5, 0.5]], 0.5, np.eye(3)).i) == 0


@pytest.mark.parametrize("package", ["ase", "matscipy", "vesin"])
@pytest.mark.parametrize("name", [name for name, (cell, *_) in CELLS.items() if len(cell) == 3 and name != "fcc"])
def test_pairs_equal_those_of_other_packages(package: str, name: str) -> None:
    module = pytest.importorskip({"ase": "ase.neighborlist", "matscipy": "matscipy.neighbours"}.get(package, package))
    (cell, periodic, radius), pos = CELLS[name], particles(name)
    vectors, repeats = np.diag(cell) if np.ndim(cell) == 1 else np.array(cell), np.broadcast_to(periodic, 3)
    if package == "ase" and name == "very skewed":
        pytest.skip("ASE takes a minute")
    if package == "ase":
        i, j, shift, distance = module.primitive_neighbor_list("ijSd", repeats, vectors, pos, radius)
    elif package == "matscipy":
        if not np.linalg.det(vectors):
            pytest.skip("matscipy needs three vectors")
        i, j, shift, distance = module.neighbour_list("ijSd", positions=pos, cell=vectors, pbc=repeats, cutoff=radius)
    else:
        if repeats.any() and not repeats.all():
            pytest.skip("vesin is periodic in all directions or none")
        lists = module.NeighborList(cutoff=radius, full_list=True)
        i, j, shift, distance = lists.compute(points=pos, box=vectors, periodic=bool(repeats.all()), quantities="ijSd")
    result = pairs_in_cell(pos, radius, cell, periodic, full=True)
    order = np.lexsort((*np.asarray(shift, int).T[::-1], j, i))
    assert rows_of(result) == list(map(tuple, np.c_[i, j, shift][order].astype(int).tolist()))
    np.testing.assert_allclose(result.distance, distance[order], rtol=1e-12)


FLAT = [[1.0, 0.0], [2.0, 0.0]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, FLAT), ValueError, "must be linearly independent"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, np.zeros((2, 2))), ValueError, "must be linearly independent"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, np.eye(3)), ValueError, r"cell has shape \(3, 3\)"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, [[1.0, np.nan], [0, 1]]), ValueError, "must be finite"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, np.eye(2), [1, 1]), ValueError, "periodic True or False"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), -1.0, np.eye(2)), ValueError, "radius is -1.0; it must be at least 0"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), np.inf, np.eye(2)), ValueError, "finite in a periodic cell"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), [1.0], np.eye(2)), TypeError, "it must be one real number"),
        (lambda: pairs_in_cell(np.zeros(2), 1.0, np.eye(2)), ValueError, r"pos has shape \(2,\)"),
        (lambda: pairs_in_cell([[np.nan, 0.0]], 1.0, np.eye(2)), ValueError, "NaN or infinite"),
        (lambda: pairs_in_cell([["a", "b"]], 1.0, np.eye(2)), TypeError, "array of real numbers"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, None), TypeError, "cell is None; it must be an array of real"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, np.eye(2) * 1j), TypeError, "cell is .*array of real numbers"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, [[1], [2, 3]]), ValueError, "cell is a list of lists of diff"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, np.eye(2) * 1e-160), ValueError, "component .* from 1e-100 to"),
        (lambda: pairs_in_cell(np.zeros((2, 2)), 1.0, np.eye(2) * 1e200), ValueError, "component .* from 1e-100 to"),
        (lambda: pairs_in_cell([[0, 0], [1e25, 0]], 1.0, np.eye(2)), ValueError, "row 1 of pos is 1e\\+25 lattice vec"),
        (lambda: pairs_in_cell(np.zeros((1, 3)), 1.0, np.eye(3) * 1e-5), MemoryError, "images of particles, which"),
        (lambda: pairs_in_cell(np.zeros((1, 3)), 1e40, np.eye(3)), MemoryError, "images of particles, which need"),
    ],
)
def test_invalid_arguments_raise(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
