"""Definitions of the columns of a group catalogue and of halo properties, in words."""

from typing import NamedTuple


class Definition(NamedTuple):
    """The definition of a property of a group.

    Attributes:
        kind: Its unit, one of "1", "length", "length^2", "mass", "velocity", "velocity^2",
            "length*velocity" and "density". Lengths
            have the unit of the particles' positions, and are comoving if these are.
        words: The definition.
        source: The paper that the definition comes from; empty for a plain count, sum or mean.
    """

    kind: str
    words: str
    source: str = ""


_FOF = "Davis et al. 1985, ApJ 292, 371"
_SHAPE = "Zemp et al. 2011, ApJS 197, 30"
DEFINITIONS: dict[str, Definition] = {
    "count": Definition("1", "number of particles of the friends-of-friends group", _FOF),
    "offset": Definition("1", "row of the group's first particle among the particles in group order"),
    "mass": Definition("mass", "sum of the masses of the particles"),
    "com_pos": Definition("length", "centre of mass, with nearest images of the particles, inside the periodic box"),
    "com_vel": Definition("velocity", "mass-weighted mean velocity"),
    "scale_factor": Definition("1", "mass-weighted mean of the scale factors 1 / zplus1 of the particles"),
    "v_rad": Definition("velocity", "mass-weighted mean of the velocity along the line of sight, v_rad"),
    "com_inertia_radius": Definition("length", "root of the mass-weighted mean squared distance from com_pos"),
    "max_radius": Definition("length", "largest distance of a particle from com_pos"),
    "vel_dispersion": Definition(
        "velocity",
        "one-dimensional velocity dispersion: root of 1/d of the mass-weighted mean squared velocity relative to "
        "com_vel, in d dimensions",
    ),
    "total_vel_dispersion": Definition(
        "velocity",
        "velocity dispersion in all dimensions together: root of the mass-weighted mean squared velocity relative to "
        "com_vel",
    ),
    "inertia_tensor": Definition(
        "length^2",
        "mass-weighted mean of the products x_i x_j, with x from com_pos to the nearest image of the particle; all "
        "particles of the group, not weighted by distance",
        _SHAPE,
    ),
    "shape_tensor": Definition(
        "1",
        "inertia tensor over its trace, which is com_inertia_radius squared: mass-weighted mean of the products "
        "x_i x_j, with x from com_pos to the nearest image of the particle, over the mean of x_i x_i summed over i",
        _SHAPE,
    ),
    "axis_lengths": Definition(
        "length",
        "com_inertia_radius times the roots of the eigenvalues of shape_tensor, the largest first: root-mean-square "
        "extents along the principal axes",
        _SHAPE,
    ),
    "axis_ratios": Definition("1", "axis_lengths except the first, divided by the first: b/a and c/a in 3D", _SHAPE),
    "principal_axes": Definition(
        "1",
        "unit vectors along the principal axes, a row for each of axis_lengths; the component that is largest in "
        "magnitude is positive",
        _SHAPE,
    ),
    "angular_momentum": Definition(
        "length*velocity",
        "angular momentum about com_pos and relative to com_vel, divided by the mass: mass-weighted mean of x cross v",
    ),
    "spin": Definition(
        "1",
        "spin parameter lambda' = J / (sqrt(2) M V R) with V^2 = G M / R, where J is the angular momentum of the "
        "particles within R",
        "Bullock et al. 2001, ApJ 555, 240",
    ),
    "concentration": Definition(
        "1",
        "concentration c of the Navarro-Frenk-White profile with the same ratio of largest circular velocity to that "
        "at the radius: (vmax / v)^2 = 0.216 c / (ln(1 + c) - c / (1 + c))",
        "Prada et al. 2012, MNRAS 423, 3018",
    ),
    "densest_pos": Definition("length", "position of the densest particle of the group; the first row of equal ones"),
    "densest_density": Definition("density", "density at the densest particle of the group"),
}
