"""The header that tests of files share. Not a test."""

from jztree_utils import io

FLAT = io.SnapshotHeader(
    time=0.5,
    redshift=1.0,
    omega0=0.3,
    omega_lambda=0.7,
    hubble=0.7,
    unit_length_in_cm=3.085678e24,
    unit_mass_in_g=1.989e43,
    unit_velocity_in_cm_per_s=1e5,
    comoving=True,
)
