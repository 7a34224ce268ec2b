"""Third-party readers must select the right particles of groups from the snapshots and catalogues written here.

They are installed with ``pip install --group readers``. SciPy finds the members independently.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from test_group_order import ATTACHED, FOF, NUMS, find_members, particles, run, write_types

from jztree_utils import io

pytestmark = pytest.mark.slow


@pytest.fixture
def held(random: np.random.Generator) -> dict[int, dict[str, np.ndarray]]:
    return particles(random)


def write_ordered(folder: Path, held: dict[int, Any], *options: Any) -> None:
    """Write a snapshot in two files, and one in group order with its catalogue. options: of the command line."""
    (folder / "before").mkdir()
    first = {ptype: num // 3 for ptype, num in NUMS.items()}
    parts = write_types(folder / "before", held, [first, {ptype: num - first[ptype] for ptype, num in NUMS.items()}])
    for part in parts:
        with h5py.File(part, "r+") as file:
            file["Header"].attrs.update({"Omega0": 0.3, "OmegaLambda": 0.7, "HubbleParam": 0.7, "Flag_Cooling": 0})
            units = {"UnitLength_in_cm": 3.085678e24, "UnitMass_in_g": 1.989e43, "UnitVelocity_in_cm_per_s": 1e5}
            file["Parameters"].attrs.update(units)
            del file["PartType0/Wide"]  # unsupported by h5py itself
    catalogue = folder / "fof_subhalo_tab_007.hdf5"
    run(parts[0], *FOF, "-o", catalogue, "--snapshot-output", folder / "snapshot_007.hdf5", *options)


@pytest.mark.parametrize("files", [1, 3])
def test_pynbody_reads_the_members(files, tmp_path, held, one_device) -> None:
    pynbody = pytest.importorskip("pynbody")
    write_ordered(tmp_path, held, "--snapshot-files", files)
    snapshot = pynbody.load(str(tmp_path / ("snapshot_007.hdf5" if files == 1 else "snapshot_007")))
    # For a snapshot in several files, pynbody 2.8.0 searches for the catalogue in a way that cannot open any.
    halos = snapshot.halos() if files == 1 else snapshot.halos(filename=str(tmp_path / "fof_subhalo_tab_007.hdf5"))
    members = find_members(held)
    assert "Gadget4" in type(halos).__name__
    assert len(halos) == len(members)
    for halo, expected in zip(halos, members, strict=True):
        assert sorted(halo["iord"].tolist()) == sorted(expected)


@pytest.mark.parametrize("files", [1, 3])
def test_yt_reads_the_members(files, tmp_path, held, one_device) -> None:
    yt = pytest.importorskip("yt")
    yt.set_log_level("error")
    write_ordered(tmp_path, held, "--snapshot-files", files)
    data = yt.load(str(tmp_path / ("snapshot_007.hdf5" if files == 1 else "snapshot_007.0.hdf5"))).all_data()
    members = find_members(held)
    with h5py.File(tmp_path / "fof_subhalo_tab_007.hdf5") as file:
        lengths, offsets = file["Group/GroupLenType"][:], file["Group/GroupOffsetType"][:]
    ids = {ptype: data[f"PartType{ptype}", "ParticleIDs"].v.astype(int) for ptype in (1, *ATTACHED)}
    for group, expected in enumerate(members):
        result = [rows[offsets[group, ptype] :][: lengths[group, ptype]] for ptype, rows in ids.items()]
        assert sorted(np.concatenate(result).tolist()) == sorted(expected)


A, H = 0.5, 0.7
MPC, MSUN10 = 3.08567758e24, 1.98841e43
# Powers of the scale factor, and of the units of length, mass and time.
POWERS = {"Coordinates": (1, 1, 0, 0), "Velocities": (0, 1, 0, -1), "Masses": (0, 0, 1, 0), "ParticleIDs": (0, 0, 0, 0)}


def write_swift(path: Path, held: dict[int, Any], sides: int = 2) -> None:
    """Write a SWIFT snapshot in one file, with particles ordered by cells."""
    counts = np.array([len(held[ptype]["ParticleIDs"]) if ptype in held else 0 for ptype in range(7)])
    with h5py.File(path, "w") as file:
        header = {"Code": np.bytes_("SWIFT"), "OutputType": np.bytes_("FullVolume"), "BoxSize": np.ones(3)}
        header |= {
            "Redshift": [1 / A - 1],
            "Scale-factor": [A],
            "Time": [0.1],
            "Dimension": [3],
            "NumFilesPerSnapshot": [1],
        }
        header |= {"NumPart_ThisFile": counts, "NumPart_Total": counts.astype(np.uint32), "ThisFile": [0]}
        header |= {"NumPart_Total_HighWord": np.zeros(7, np.uint32), "NumPartTypes": [7], "MassTable": np.zeros(7)}
        file.create_group("Header").attrs.update(header)
        file.create_group("Policy")
        file.create_group("Parameters").attrs["FOF:group_id_default"] = np.bytes_("1")
        units = {"mass": MSUN10, "length": MPC, "time": MPC / 1e5, "current": 1.0, "temperature": 1.0}
        names = dict(zip(units, ("U_M", "U_L", "U_t", "U_I", "U_T"), strict=True))
        in_cgs = {f"Unit {kind} in cgs ({names[kind]})": [value] for kind, value in units.items()}
        for name in ("Units", "InternalCodeUnits"):
            file.create_group(name).attrs.update(in_cgs)
        cosmology = {
            "Cosmological run": 1,
            "Redshift": 1 / A - 1,
            "Scale-factor": A,
            "h": H,
            "H0 [internal units]": 100 * H,
        }
        cosmology |= {
            "Omega_m": 0.3,
            "Omega_lambda": 0.7,
            "Omega_b": 0.05,
            "Omega_cdm": 0.25,
            "Omega_nu_0": 0.0,
            "Omega_k": 0.0,
            "Omega_r": 0.0,
        }
        cosmology |= {"w_0": -1.0, "w_a": 0.0, "w": -1.0}
        file.create_group("Cosmology").attrs.update({name: [value] for name, value in cosmology.items()})
        places = np.stack(np.meshgrid(*[np.arange(sides)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
        file["Cells/Centres"] = (places + 0.5) / sides
        about = {"dimension": [sides] * 3, "nr_cells": [sides**3], "size": np.full(3, 1 / sides)}
        file.create_group("Cells/Meta-data").attrs.update(about)
        for ptype, columns in held.items():
            write_cells(file, ptype, columns, sides)


def write_cells(file: h5py.File, ptype: int, columns: dict[str, np.ndarray], sides: int) -> None:
    columns = {"Masses": np.full(len(columns["ParticleIDs"]), 2.5, np.float32)} | columns
    columns["Coordinates"] = columns["Coordinates"] % 1
    cell = (columns["Coordinates"] * sides).astype(int) @ [sides * sides, sides, 1]
    counts = np.bincount(cell, minlength=sides**3)
    file[f"Cells/Counts/PartType{ptype}"] = counts
    file[f"Cells/OffsetsInFile/PartType{ptype}"] = np.cumsum(counts) - counts
    file[f"Cells/Files/PartType{ptype}"] = np.zeros(sides**3, np.int32)
    for name, (a, *powers) in POWERS.items():
        rows = columns[name][np.argsort(cell, kind="stable")]
        data = file.create_dataset(f"PartType{ptype}/{name}", data=rows.astype(rows.dtype.newbyteorder("=")))
        exponents = dict(zip(("U_L", "U_M", "U_t", "U_I", "U_T"), (*powers, 0, 0), strict=True))
        data.attrs.update({f"{unit} exponent": np.array([power], np.float32) for unit, power in exponents.items()})
        data.attrs.update({"a-scale exponent": [float(a)], "h-scale exponent": [0.0], "Description": np.bytes_(name)})
        data.attrs["Conversion factor to CGS (not including cosmological corrections)"] = [1.0]


@pytest.fixture
def soap(tmp_path: Path, held: dict[int, Any], one_device: None) -> tuple[Path, Path]:
    """Return a catalogue in the layout of SOAP, and the snapshot with group numbers."""
    del held[3]
    write_swift(tmp_path / "snap_0007.hdf5", held)
    catalogue, numbered = tmp_path / "halos.hdf5", tmp_path / "numbered.hdf5"
    call = [*FOF[:-1], "soap", "--properties", "-o", catalogue, "--group-ids-output", numbered]
    run(tmp_path / "snap_0007.hdf5", *call)
    return catalogue, numbered


def masses_of(held: dict[int, Any]) -> dict[int, float]:
    return {
        item: float(mass)
        for columns in held.values()
        for item, mass in zip(
            columns["ParticleIDs"].tolist(),
            columns.get("Masses", np.full(len(columns["ParticleIDs"]), 2.5)),
            strict=True,
        )
    }


def test_swiftsimio_reads_the_layout_of_soap(soap, held) -> None:
    swiftsimio = pytest.importorskip("swiftsimio")
    data = swiftsimio.load(str(soap[0]))
    members, mass = find_members(held), masses_of(held)
    assert data.metadata.output_type == "SOAP"
    np.testing.assert_array_equal(data.input_halos.halo_catalogue_index.v, np.arange(len(members)))
    np.testing.assert_array_equal(data.input_halos_fof.sizes.v, [len(member) for member in members])
    expected = [sum(mass[column] for column in group) * 1e10 for group in members]
    np.testing.assert_allclose(data.bound_subhalo.total_mass.to_physical().to("Msun").v, expected, rtol=1e-4)
    own = data.input_halos_jztree
    np.testing.assert_array_equal(data.spherical_overdensity_200_crit.total_mass.v, own.m200c.v)
    np.testing.assert_array_equal(data.spherical_overdensity_bn98.soradius.v, own.rvir.v)
    selected = swiftsimio.mask(str(soap[0]))
    selected.constrain_indices([3, 1])
    sample = swiftsimio.load(str(soap[0]), mask=selected)
    np.testing.assert_array_equal(sample.input_halos.number_of_bound_particles.v, [len(members[row]) for row in (1, 3)])
    assert data.metadata.cosmology.h == pytest.approx(H, rel=1e-5)


def test_swiftgalaxy_reads_the_members(soap, held) -> None:
    swiftgalaxy = pytest.importorskip("swiftgalaxy")
    catalogue, numbered = soap
    members = find_members(held)
    for row in (0, 4, len(members) - 1):
        galaxy = swiftgalaxy.SWIFTGalaxy(str(numbered), swiftgalaxy.SOAP(str(catalogue), soap_index=row))
        types = (galaxy.gas, galaxy.dark_matter, galaxy.stars, galaxy.black_holes)
        result = np.concatenate([np.ravel(column.particle_ids.v) for column in types])
        assert sorted(result.tolist()) == sorted(members[row])


def test_swiftsimio_and_swiftgalaxy_read_subhaloes(tmp_path: Path, held: dict[int, Any], one_device: None) -> None:
    swiftsimio, swiftgalaxy = (pytest.importorskip(name) for name in ("swiftsimio", "swiftgalaxy"))
    del held[3]
    for columns in held.values():
        columns["Velocities"] *= 1e-3
    write_swift(tmp_path / "snap_0007.hdf5", held)
    catalogue, numbered = str(tmp_path / "halos.hdf5"), str(tmp_path / "numbered.hdf5")
    options = ["--subhaloes", "--min-bound", "5", "--properties", "-o", catalogue, "--group-ids-output", numbered]
    run(tmp_path / "snap_0007.hdf5", *FOF[:-1], "soap", *options)
    content = io.read_catalogue_content(catalogue)
    count, group = (content.subhaloes[name].values for name in ("count", "group"))
    assert len(count) > 1
    data = swiftsimio.load(catalogue)
    np.testing.assert_array_equal(data.input_halos.number_of_bound_particles.v, count)
    np.testing.assert_array_equal(data.soap.host_halo_index.v, np.searchsorted(group, group))
    mass = data.bound_subhalo.total_mass.to_physical().to("Msun").v
    np.testing.assert_allclose(mass, content.subhaloes["mass"].values * 1e10, rtol=1e-4)
    for row in (0, len(count) - 1):
        galaxy = swiftgalaxy.SWIFTGalaxy(numbered, swiftgalaxy.SOAP(catalogue, soap_index=row))
        types = (galaxy.gas, galaxy.dark_matter, galaxy.stars, galaxy.black_holes)
        ids = np.concatenate([np.ravel(column.particle_ids.v) for column in types])
        before = content.catalogue.offset[group[row]] + count[np.searchsorted(group, group[row]) : row].sum()
        assert sorted(ids.tolist()) == sorted(content.ids[before : before + count[row]].tolist())


def test_pynbody_reads_the_members_by_number(soap, held) -> None:
    pynbody = pytest.importorskip("pynbody")
    catalogue, numbered = soap
    members = find_members(held)
    halos = pynbody.load(str(numbered)).halos()
    for row, expected in enumerate(members):
        assert sorted(halos[row + 1]["iord"].tolist()) == sorted(expected)
    table = pynbody.load(str(catalogue))
    np.testing.assert_array_equal(table["InputHalos/FOF/Sizes"], [len(member) for member in members])
