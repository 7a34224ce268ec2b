"""A small particle-mesh run with a fixed seed, as input for tests of links and trees. Not a test."""

import functools
import itertools

import numpy as np

from jztree.data import ParticleData

_MESH = 32  # cells and particles per side of the unit box
_OUTPUTS = np.linspace(0.4, 1.1, 8)  # scale factors of an Einstein-de Sitter universe
_STEPS = 4  # between outputs


@functools.cache
def outputs_of_run() -> list[ParticleData]:
    """Return the particles of eight outputs, each in another order, with identifiers of 64 bits."""
    random = np.random.default_rng(5)
    ids = random.choice(2**60, _MESH**3, replace=False).astype(np.uint64)
    waves = 2 * np.pi * np.fft.fftfreq(_MESH, 1 / _MESH)
    k = np.stack(np.meshgrid(waves, waves, waves, indexing="ij"))
    k2 = np.where((k**2).sum(0) == 0, np.inf, (k**2).sum(0))
    # A power spectrum k^-2, with a rms density contrast of about 4 at a = 1.
    density = np.fft.fftn(random.standard_normal((_MESH,) * 3)) / np.sqrt(k2)
    density *= 4.0 / np.fft.ifftn(density).real.std()
    shift = np.stack([np.fft.ifftn(1j * axis / k2 * density).real for axis in k])
    grid = np.stack(np.meshgrid(*[(np.arange(_MESH) + 0.5) / _MESH] * 3, indexing="ij"))
    pos = (grid + _OUTPUTS[0] * shift).reshape(3, -1).T
    momentum = _OUTPUTS[0] ** 1.5 * shift.reshape(3, -1).T  # a^2 dx/dt with H0 = 1, of Zel'dovich's solution
    outputs = [_shuffled(random, ids, pos)]
    for start, stop in itertools.pairwise(_OUTPUTS):
        step = (stop - start) / _STEPS
        for a in start + step * np.arange(_STEPS):
            pos = pos + step / 2 * momentum * a**-1.5
            middle = a + step / 2
            momentum = momentum + step * _force(pos % 1, k, k2) / np.sqrt(middle)
            pos = pos + step / 2 * momentum * (a + step) ** -1.5
        outputs.append(_shuffled(random, ids, pos))
    return outputs


def _shuffled(random: np.random.Generator, ids: np.ndarray, pos: np.ndarray) -> ParticleData:
    order = random.permutation(len(ids))
    return ParticleData(pos=(pos[order] % 1).astype(np.float32), id=ids[order])


def _force(pos: np.ndarray, k: np.ndarray, k2: np.ndarray) -> np.ndarray:
    """Return minus the gradient of the potential, 3/2 of the inverse Laplacian of the density contrast."""
    cell = pos * _MESH - 0.5
    low = np.floor(cell).astype(int)
    corners = [
        (np.abs(1 - np.asarray(c) - (cell - low)).prod(1), tuple(((low + c) % _MESH).T)) for c in np.ndindex(2, 2, 2)
    ]
    contrast = np.zeros((_MESH,) * 3)
    for weight, place in corners:
        np.add.at(contrast, place, weight)
    potential = -1.5 * np.fft.fftn(contrast - 1) / k2
    field = [np.fft.ifftn(-1j * axis * potential).real for axis in k]
    return np.stack([sum(weight * axis[place] for weight, place in corners) for axis in field], axis=1)
