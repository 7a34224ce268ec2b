"""Friends-of-friends groups on the sphere."""

import jax
import numpy as np
from numpy.typing import ArrayLike

from jztree.fof import fof_labels

from ..kdtree import padded
from ._arguments import checked_angles, checked_directions
from ._coordinates import chord_edges, unit_vectors


def angular_groups(ra: ArrayLike, dec: ArrayLike, linking_length: ArrayLike) -> np.ndarray:
    """Label the friends-of-friends groups of objects on the sky.

    Two objects are linked if the distance of their unit vectors in float64 is at most ``2 sin(linking_length / 2)``. A
    group is a set of objects that are linked to each other directly or through others. Groups continue across RA = 0
    and the poles.

    If each object has its own linking length, the mean of both distances counts. The corresponding angle is the mean of
    both angles, reduced by at most a factor of ``cos((a - b) / 4)``, which is 1 - 1e-5 if they differ by one degree.

    Args:
        ra: ``(n,)`` right ascensions in degrees, any real numbers.
        dec: ``(n,)`` declinations in degrees, from -90 to 90.
        linking_length: The linking length in degrees, from 0 to 180, one for all objects or ``(n,)``.

    Returns:
        ``(n,)`` int32, for each object the first row of its group. Groups of any size have labels, also single objects.

    Raises:
        TypeError: If an argument is not of plain real numbers.
        ValueError: If an argument is invalid.
    """
    ra, dec = checked_directions(ra, dec)
    length = checked_angles(linking_length, "linking_length")
    if length.shape not in ((), ra.shape):
        raise ValueError(
            f"linking_length has shape {length.shape}; it must be one angle, or {ra.shape}, one per object."
        )
    with jax.enable_x64(True):
        part, chord = padded(unit_vectors(ra, dec)), chord_edges(length)
        rlink = np.append(chord, np.zeros(part.pos.shape[0] - len(ra))) if length.ndim else float(chord)
        _, labels = fof_labels.jit(part, rlink, output_order="input")
        return np.array(labels)[: len(ra)]
