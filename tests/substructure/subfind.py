"""SUBFIND in plain NumPy, with sums over all pairs in float64, for groups of up to a few thousand particles."""

from typing import Any, NamedTuple

import numpy as np

MIN_BOUND = 20


class SlowSubhaloes(NamedTuple):
    """The subhaloes in the order of `jztree.subhaloes`: rows of the bound particles of each, and their energies."""

    rows: list[np.ndarray]
    energies: list[np.ndarray]
    group: list[int]
    parent: list[int]
    depth: list[int]
    centre: list[int]
    vel: list[np.ndarray]


class World(NamedTuple):
    """Particles in group order, and constants."""

    pos: np.ndarray
    vel: np.ndarray
    mass: np.ndarray
    density: np.ndarray
    gravity: float
    softening: float = 0.0
    box: float = 0.0
    hubble: float = 0.0
    scale_factor: float = 1.0
    internal: Any = None
    k: int = 32
    candidates: Any = None  # a function of the world and the rows of a group; None means SUBFIND

    def separations(self, rows: np.ndarray, row: Any) -> np.ndarray:
        separation = self.pos[rows].astype(float) - self.pos[row].astype(float)
        return separation - self.box * np.round(separation / self.box) if self.box else separation


def slow_subhaloes(world: World, offset: Any, count: Any) -> SlowSubhaloes:
    """Find the subhaloes of groups, given the first row and the number of rows of each."""
    subhaloes: list[tuple[Any, ...]] = []
    for group, (begin, number) in enumerate(zip(offset, count, strict=True)):
        subhaloes += _subhaloes_of_group(world, group, np.arange(begin, begin + number))
    columns = list(zip(*subhaloes, strict=True)) if subhaloes else [()] * 7
    start = {group: columns[2].index(group) for group in set(columns[2])}
    parent = [p if p < 0 else p + start[g] for g, p in zip(columns[2], columns[3], strict=True)]
    return SlowSubhaloes(*[list(column) for column in (*columns[:3], parent, *columns[4:])])


def candidates_of(world: World, rows: np.ndarray) -> list[set[int]]:
    """Return the candidates in the rows of a group, inner ones first; the last is the whole group."""
    if len(rows) < MIN_BOUND:
        return []
    falling = sorted(rows, key=lambda row: (-world.density[row], row))
    place = {row: i for i, row in enumerate(falling)}
    everyone = np.arange(len(world.pos))
    sets: list[set[int]] = []
    candidates = []

    def join(first: set[int], second: set[int]) -> None:
        def strength(members: set[int]) -> tuple[int, int]:
            return len(members), -min(place[row] for row in members)

        small, large = sorted((first, second), key=strength)
        if len(small) >= MIN_BOUND:
            candidates.append(set(small))
        sets.remove(small)
        large |= small

    for row in falling:
        distance = (world.separations(everyone, row) ** 2).sum(axis=1)
        nearest = np.argsort(distance, kind="stable")[: world.k]
        denser = [near_row for near_row in nearest if place.get(near_row, len(rows)) < place[row]][:2]
        touched = [next(members for members in sets if denser_row in members) for denser_row in denser]
        if not touched:
            sets.append({row})
            continue
        if len(touched) == 2 and touched[0] is not touched[1]:
            join(*touched)
        next(members for members in sets if denser[0] in members).add(row)
    largest = max(sets, key=lambda members: (len(members), -min(place[row] for row in members)))
    for members in sorted((s for s in sets if s is not largest), key=lambda s: min(place[row] for row in s)):
        join(members, largest)
    return [*candidates, set(rows)]


def potentials(world: World, rows: np.ndarray) -> np.ndarray:
    result = np.zeros(len(rows))
    for i, row in enumerate(rows):
        rho = np.sqrt((world.separations(rows, row) ** 2).sum(axis=1) + world.softening**2)
        rho[(np.arange(len(rows)) == i) | (rho == 0)] = np.inf
        result[i] = -world.gravity / world.scale_factor * (world.mass[rows].astype(float) / rho).sum()
    return result


def core_velocity(world: World, rows: np.ndarray, key: np.ndarray) -> np.ndarray:
    core = rows[np.argsort(key, kind="stable")[: max(20, len(rows) // 10)]]
    return np.average(world.vel[core].astype(float), axis=0, weights=world.mass[core])


def energies_of(world: World, rows: np.ndarray, vel: np.ndarray, potential: Any = None) -> tuple[np.ndarray, int]:
    """Return the energies of rows in a frame with a velocity, and the row of lowest potential."""
    potential = potentials(world, rows) if potential is None else potential
    centre = rows[np.argmin(potential)]
    flow = world.hubble * world.scale_factor * world.separations(rows, centre)
    speed2 = ((world.vel[rows] - vel + flow) ** 2).sum(axis=1)
    return speed2 / 2 + (0.0 if world.internal is None else world.internal[rows]) + potential, centre


def _subhaloes_of_group(world: World, group: int, rows: np.ndarray) -> list[tuple[Any, ...]]:
    candidates, bound, inner_rows = (world.candidates or candidates_of)(world, rows), [], set()
    for number, members in enumerate(candidates):
        remaining, key = np.array(sorted(members - inner_rows), dtype=int), None
        while len(remaining) >= MIN_BOUND:
            potential = potentials(world, remaining)
            vel = core_velocity(world, remaining, potential if key is None else key)
            energy, centre = energies_of(world, remaining, vel, potential)
            if (energy < 0).all():
                inner_rows |= set(remaining)
                bound.append((number, remaining, energy, centre, vel))
                break
            remaining, key = remaining[energy < 0], energy[energy < 0]
    last = len(candidates) - 1
    bound.sort(key=lambda subhalo: (subhalo[0] != last, -len(subhalo[1])))
    numbers = [subhalo[0] for subhalo in bound]
    result = []
    for number, remaining, energy, centre, vel in bound:
        outer = [n for n in numbers if n != number and n > number and candidates[number] <= candidates[n]]
        parent = numbers.index(min(outer, key=lambda n: len(candidates[n]))) if outer else -1
        result.append((remaining, energy, group, parent, len(outer), centre, vel))
    return result
