"""The header of snapshots that tests share, and a writer of several types of particles. Not a test."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

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

# Entries of Gadget's headers
COSMOLOGY = {"Time": 0.5, "Redshift": 1.0, "Omega0": 0.3, "OmegaLambda": 0.7, "HubbleParam": 0.7}
UNITS = {"UnitLength_in_cm": 3.085678e24, "UnitMass_in_g": 1.989e43, "UnitVelocity_in_cm_per_s": 1e5}


def write_types(path: Path, header: Mapping[str, Any], types: Mapping[int, Mapping[str, np.ndarray]]) -> Path:
    """Write a Gadget snapshot in one file with h5py alone: the columns of each type, and further header entries."""
    counts = np.array([len(types[ptype]["Coordinates"]) if ptype in types else 0 for ptype in range(6)])
    entries = {"NumFilesPerSnapshot": 1, "NumPart_ThisFile": counts, "NumPart_Total": counts, "MassTable": np.zeros(6)}
    with h5py.File(path, "w") as file:
        file.create_group("Header").attrs.update(entries | dict(header))
        for ptype, columns in types.items():
            for name, rows in columns.items():
                file[f"PartType{ptype}/{name}"] = rows
    return path
