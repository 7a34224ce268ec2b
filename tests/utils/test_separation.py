"""Mean separations and linking lengths, compared with the definition in cgs units, on generated zoom-in simulations."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from headers import write_types

from jztree_utils import cli, ics, io
from jztree_utils.separation import mean_separation

_BOX, _OMEGA, _BARYON, _H = 50.0, 0.31, 0.048, 0.68
_KPC, _SUN = 3.085678e21, 1.989e33
_UNITS = {"UnitLength_in_cm": 1e3 * _KPC, "UnitMass_in_g": 1e10 * _SUN, "UnitVelocity_in_cm_per_s": 1e5}


def by_hand(mass: float, omega: float) -> float:
    """Return the side of a cube of ``mass`` in 1e10 Msun/h at density ``omega``, in Mpc/h, computed in cgs units."""
    hubble = _H * 1e7 / (1e3 * _KPC)  # 1/s
    density = omega * 3 * hubble**2 / (8 * math.pi * 6.674e-8)
    return (mass * 1e10 * _SUN / _H / density) ** (1 / 3) / (1e3 * _KPC / _H)


def header(**others) -> io.SnapshotHeader:
    known = {"boxsize": _BOX, "omega0": _OMEGA, "hubble": _H, "unit_length_in_cm": _UNITS["UnitLength_in_cm"]}
    known |= {"unit_mass_in_g": _UNITS["UnitMass_in_g"], "unit_velocity_in_cm_per_s": 1e5, "comoving": True}
    return io.SnapshotHeader(**(known | others))


def test_high_resolution_particles_of_a_zoom() -> None:
    result = mean_separation(header(npart_total=(0, 4000, 900)), 4000, 0.033)
    assert result.by == "mass"
    assert result.value == pytest.approx(by_hand(0.033, _OMEGA), rel=3e-4)
    assert result.by_number == pytest.approx(_BOX / 4000 ** (1 / 3))
    assert f"{result.by_mass:.6g}" in result.doubt
    assert f"{result.by_number:.6g}" in result.doubt


@pytest.mark.parametrize("mass", [0.03, 0.004])
def test_baryons_are_separate_if_there_is_gas(mass: float) -> None:
    known = header(npart_total=(500, 500, 0, 0, 300), omega_baryon=_BARYON)
    assert mean_separation(known, 300, mass).value == pytest.approx(by_hand(mass, _OMEGA - _BARYON), rel=3e-4)
    alone = header(npart_total=(0, 500), omega_baryon=_BARYON)
    assert mean_separation(alone, 500, mass).value == pytest.approx(by_hand(mass, _OMEGA), rel=3e-4)


def test_units_free_of_h_give_the_same_length() -> None:
    per_h = mean_separation(header(), 10, 0.03)
    lengths = {"boxsize": _BOX / _H, "h_free": True}
    free = mean_separation(header(**lengths), 10, 0.03 / _H)
    assert free.value * _H == pytest.approx(per_h.value, rel=1e-9)
    assert mean_separation(header(**lengths, hubble=None), 10, 0.03 / _H).by == "number"


def test_number_is_used_if_both_agree_or_the_header_is_incomplete() -> None:
    num = 64**3
    mass = _OMEGA * 27.7536627 * _BOX**3 / num
    full = mean_separation(header(), num, mass)
    assert (full.value, full.by, full.doubt) == (_BOX / 64, "number", "")
    assert full.by_mass == pytest.approx(_BOX / 64, rel=1e-6)
    for second in ({"omega0": None}, {"unit_mass_in_g": None}, {"comoving": False}):
        assert mean_separation(header(**second), 4000, 0.03).by == "number"
    assert mean_separation(header(), 4000, None).by == "number"
    assert mean_separation(header(boxsize=0.0), 4000, 0.03).by == "mass"
    assert mean_separation(header(boxsize=0.0), 4000) is None
    flat = mean_separation(header(boxsize=(8.0, 2.0)), 4, 0.03, ndim=2)
    assert (flat.value, flat.by) == (2.0, "number")


def test_gas_without_the_density_of_baryons() -> None:
    num, share = 32**3, _OMEGA - _BARYON
    mass = share * 27.7536627 * _BOX**3 / num
    full = mean_separation(header(npart_total=(num, num)), num, mass)
    assert (full.value, full.by) == (pytest.approx(_BOX / 32), "number")
    zoom = mean_separation(header(npart_total=(num, num)), num, mass / 1000)
    assert (zoom.by, bool(zoom.doubt)) == ("mass", True)


def write_zoom(path: Path, rng: np.random.Generator) -> float:
    """Write dark matter with three masses, two in type 1. Return the mean mass of that type."""
    own = np.where(np.arange(600) < 500, 0.03, 0.24).astype(np.float32)
    far = np.full(200, 15.0, np.float32)
    header = {"BoxSize": _BOX, "Time": 1.0, "Redshift": 0.0, "HubbleParam": _H}
    types = {}
    for ptype, mass, width in ((1, own, 1.0), (2, far, 15.0)):
        pos = (rng.normal(25, width, (len(mass), 3)) % _BOX).astype(np.float32)
        types[ptype] = {"Coordinates": pos, "Masses": mass}
    write_types(path, header | _UNITS | {"Omega0": _OMEGA, "OmegaLambda": 1 - _OMEGA}, types)
    return float(own.astype(np.float64).mean())


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 4])
def test_command_line_reports_the_method_and_warns(devices, tmp_path, random, use_devices, capsys) -> None:
    use_devices(devices)
    path, output = tmp_path / "zoom.hdf5", tmp_path / "c.hdf5"
    mean = write_zoom(path, random)
    assert cli.main(["fof", str(path), "--npart-min", "2", "-o", str(output)]) == 0
    message = capsys.readouterr()
    assert "0.2 mean separations, by the mass of the particles and Omega0" in message.out
    assert message.err.count("jztree: warning: The mean separation of the particles is ") == 1
    built = io.read_catalogue(output)[2]
    assert built.separation_by == "mass"
    assert built.mean_separation == mean_separation(io.read_header(path), 600, mean).value  # to the last bit
    assert built.linking_length == 0.2 * built.mean_separation
    assert built.mean_separation == pytest.approx(by_hand(mean, _OMEGA), rel=3e-4)
    assert cli.main(["fof", str(path), "--rlink", "0.1", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["mean_separation"]["by_number"] == pytest.approx(_BOX / 600 ** (1 / 3))


def test_full_box_keeps_its_linking_length(one_device, capsys) -> None:
    assert cli.main(["fof", str(ics.SAMPLE_3D), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["linking_length"] == 0.15625
    assert summary["mean_separation"]["by_mass"] == pytest.approx(0.78125, rel=1e-6)
