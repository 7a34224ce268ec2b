"""Definitions of the properties of subhaloes, in words."""

from ..halos import Definition

_SUBFIND = "Springel et al. 2001, MNRAS 328, 726"
_CIRCULAR = "Klypin et al. 2011, ApJ 740, 102"
DEFINITIONS: dict[str, Definition] = {
    "group": Definition("1", "row of the group in the catalogue"),
    "parent": Definition("1", "row of the next larger subhalo that contains this one, -1 for none", _SUBFIND),
    "depth": Definition("1", "number of larger subhaloes that contain this one, 0 for central subhaloes"),
    "count": Definition("1", "number of bound particles", _SUBFIND),
    "count_by_type": Definition("1", "number of bound particles of each type"),
    "mass": Definition("mass", "sum of the masses of the bound particles"),
    "most_bound": Definition("1", "row of the particle of lowest energy"),
    "pos": Definition("length", "position of the bound particle of lowest potential", _SUBFIND),
    "vel": Definition(
        "velocity",
        "mass-weighted mean velocity of the core: the tenth of the bound particles (rounded down, at least 20) with "
        "the lowest energies in the step before the last, or the lowest potentials if there is one step",
        "Behroozi et al. 2013, ApJ 762, 109",
    ),
    "com_pos": Definition("length", "centre of mass of the bound particles"),
    "com_vel": Definition("velocity", "mass-weighted mean velocity of the bound particles"),
    "vmax": Definition(
        "velocity", "largest circular velocity sqrt(G M(<r) / r) around pos, of the bound particles", _CIRCULAR
    ),
    "rmax": Definition("length", "radius of the circular velocity vmax", _CIRCULAR),
    "half_mass_radius": Definition("length", "radius around pos of the sphere with half of the bound mass", _SUBFIND),
    "vel_dispersion": Definition(
        "velocity",
        "one-dimensional velocity dispersion: root of 1/d of the mass-weighted mean squared velocity relative to "
        "com_vel, in d dimensions",
    ),
    "angular_momentum": Definition(
        "length*velocity",
        "angular momentum about com_pos and relative to com_vel, divided by the mass: mass-weighted mean of x cross v",
    ),
    "spin": Definition(
        "1",
        "spin parameter J |E|^(1/2) / (G M^(5/2)) of the bound particles, with the energy E relative to com_vel, "
        "without the Hubble flow and internal energies",
        "Peebles 1969, ApJ 155, 393",
    ),
    "energy": Definition(
        "velocity^2",
        "of each particle, per mass: kinetic energy in the frame of the core of its subhalo, with the Hubble flow, "
        "internal energy, and potential of the other bound particles",
        _SUBFIND,
    ),
}
