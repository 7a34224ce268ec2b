"""Candidates in phase space, in plain NumPy and float64, for groups of up to a few thousand particles."""

import numpy as np
from scipy.sparse.csgraph import connected_components

from .subfind import MIN_BOUND, World


def phase_space_candidates_of(world: World, rows: np.ndarray) -> list[set[int]]:
    """Return the candidates in the rows of a group, inner ones first; the last is the whole group."""
    if len(rows) < MIN_BOUND:
        return []
    phase = np.concatenate([world.separations(rows, rows[0]), world.vel[rows]], axis=1).astype(float)
    holder, parents = np.zeros(len(rows), int), [-1]
    sets = [(0, np.arange(len(rows)))]
    while sets:
        smaller_sets = []
        for candidate, members in sets:
            coordinates = _scaled(phase, members)
            pieces = _significant(coordinates, _pieces(coordinates, members))
            pieces = [piece for piece in pieces if len(piece) < len(members)]
            joined = _joined(coordinates, pieces, np.flatnonzero(holder == candidate))
            main = int(np.argmax([len(piece_rows) for piece_rows in joined])) if pieces else -1
            for i, piece in enumerate(pieces):
                if i != main:
                    holder[joined[i]] = len(parents)
                    parents.append(candidate)
                smaller_sets.append((candidate if i == main else len(parents) - 1, piece))
        sets = smaller_sets
    members_of = [set(rows[holder == candidate]) for candidate in range(len(parents))]
    for candidate in range(len(parents) - 1, 0, -1):
        members_of[parents[candidate]] |= members_of[candidate]
    return members_of[::-1]


def _scaled(phase: np.ndarray, members: np.ndarray) -> np.ndarray:
    offset = phase - phase[members].mean(axis=0)
    dims = phase.shape[1] // 2
    halves = []
    for half in (offset[:, :dims], offset[:, dims:]):
        dispersion = np.sqrt((half[members] ** 2).sum(axis=1).mean())
        halves.append(half / dispersion if dispersion > 0 else 0 * half)
    return np.concatenate(halves, axis=1)


def _distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.sqrt(((first[:, None] - second) ** 2).sum(axis=-1))
    return result


def _pieces(coordinates: np.ndarray, members: np.ndarray) -> list[np.ndarray]:
    """Return the groups of at least MIN_BOUND members, but not of all, in the order of their first rows."""
    if len(members) < 2:
        return []
    distance = _distances(coordinates[members], coordinates[members])
    np.fill_diagonal(distance, np.inf)
    length = np.sort(distance.min(axis=1))[len(members) - len(members) // 10 - 1]
    label = connected_components(distance <= length * (1 + 1e-6))[1]
    groups = [members[label == number] for number in range(label.max() + 1)]
    return [group for group in groups if MIN_BOUND <= len(group) < len(members) and length > 0]


def _significant(coordinates: np.ndarray, pieces: list[np.ndarray]) -> list[np.ndarray]:
    """Join pieces to the largest or the nearest one, if it is larger, unless their centres differ significantly."""
    if len(pieces) < 2:
        return pieces
    count, dims = np.array([len(piece) for piece in pieces]), coordinates.shape[1] // 2
    centre = np.array([coordinates[piece].mean(axis=0) for piece in pieces])
    error2 = np.array([coordinates[piece].var(axis=0) / len(piece) for piece in pieces])
    largest, distance = int(np.argmax(count)), _distances(centre, centre)
    np.fill_diagonal(distance, np.inf)
    target = np.arange(len(pieces))
    for i in range(len(pieces)):
        for j in (int(np.argmin(distance[i])), largest):  # the largest decides
            halves = ((centre[i] - centre[j]) ** 2).reshape(2, dims).sum(axis=1)
            errors = (error2[i] + error2[j]).reshape(2, dims).sum(axis=1)
            if (count[j], -j) > (count[i], -i) and (halves / errors).sum() < 200:
                target[i] = j
    while (target[target] != target).any():
        target = target[target]
    return [np.sort(np.concatenate([pieces[i] for i in np.flatnonzero(target == j)])) for j in np.unique(target)]


def _joined(coordinates: np.ndarray, pieces: list[np.ndarray], held: np.ndarray) -> list[np.ndarray]:
    """Return the particles of each piece, with the other held particles that are nearest to one of them."""
    if len(pieces) < 2:
        return pieces
    members = np.concatenate(pieces)
    owner = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    rest = np.setdiff1d(held, members)
    nearest = owner[_distances(coordinates[rest], coordinates[members]).argmin(axis=1)] if len(rest) else rest
    return [np.concatenate([piece, rest[nearest == i]]) for i, piece in enumerate(pieces)]
