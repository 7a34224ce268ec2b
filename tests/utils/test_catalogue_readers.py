"""Third-party readers must open the catalogues written here, and find the same values in them.

They are installed with ``pip install --group readers``. Values are compared at redshift 1 with h = 0.5, where units
matter.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_catalogues import full_content

from jztree.data import ParticleData
from jztree_utils import io

pytestmark = pytest.mark.slow

MSUN, KPC = 1.989e33, 3.085678e21
A, H = 0.5, 0.5


@pytest.fixture
def content() -> io.CatalogueContent:
    """Return groups of dark matter only, in a box of 100 kpc/h, with masses in 1e10 Msun/h."""
    full = full_content(types=False)
    info = replace(full.info, header=replace(full.info.header, npart_total=(0, len(full.ids), 0, 0, 0, 0)))
    return replace(full, info=info)


def test_yt(tmp_path: Path, content: io.CatalogueContent) -> None:
    yt = pytest.importorskip("yt")
    yt.set_log_level("error")
    io.write_catalogue_content(tmp_path / "fof_tab_000.0.hdf5", content, "gadget4")
    header = content.info.header
    units = {
        "UnitLength_in_cm": header.unit_length_in_cm,
        "UnitMass_in_g": header.unit_mass_in_g,
        "UnitVelocity_in_cm_per_s": header.unit_velocity_in_cm_per_s,
    }
    data = yt.load(str(tmp_path / "fof_tab_000.0.hdf5"), unit_base=units)  # the default is Mpc/h
    assert data.hubble_constant == H
    assert data.current_redshift == 1
    groups = data.all_data()
    order = np.argsort(groups["Group", "particle_identifier"])
    masses = groups["Group", "particle_mass"][order].in_cgs().v
    np.testing.assert_allclose(masses, content.catalogue.mass * 1e10 * MSUN / H, rtol=1e-5)
    for axis, name in enumerate("xyz"):
        result = groups["Group", f"particle_position_{name}"][order].in_cgs().v
        np.testing.assert_allclose(result, content.catalogue.com_pos[:, axis] * KPC * A / H, rtol=1e-5)
    np.testing.assert_array_equal(groups["Group", "spin"][order], content.extra["spin"].values)
    radii = groups["Group", "Group_R_Crit200"][order].v
    np.testing.assert_array_equal(radii, content.extra["r200c"].values)


def test_pynbody(tmp_path: Path, content: io.CatalogueContent) -> None:
    pynbody = pytest.importorskip("pynbody")
    random = np.random.default_rng(0)
    part = ParticleData(
        pos=random.random((len(content.ids), 3)), vel=random.random((len(content.ids), 3)), mass=2.0, id=content.ids
    )
    io.write_snapshot(tmp_path / "snapshot_000.hdf5", part, content.info.header)
    io.write_catalogue_content(tmp_path / "fof_subhalo_tab_000.hdf5", content, "gadget4")
    halos = pynbody.load(str(tmp_path / "snapshot_000.hdf5")).halos()
    assert "Gadget4" in type(halos).__name__
    assert [len(halo) for halo in halos] == content.catalogue.count.tolist()
    for group, halo in enumerate(halos):
        first, count = content.catalogue.offset[group], content.catalogue.count[group]
        np.testing.assert_array_equal(np.sort(halo["iord"]), np.sort(content.ids[first : first + count]))
        position = halo.properties["GroupPos"].in_units("cm", **halo.conversion_context())
        np.testing.assert_allclose(position, content.catalogue.com_pos[group] * KPC * A / H, rtol=1e-5)
    mass = halos[0].properties["GroupMass"]
    np.testing.assert_allclose(mass.in_units("g", a=A, h=H), content.catalogue.mass[0] * 1e10 * MSUN / H, rtol=1e-5)


@pytest.mark.parametrize("ids", [True, False])
def test_swiftsimio(tmp_path: Path, content: io.CatalogueContent, ids: bool) -> None:
    swiftsimio = pytest.importorskip("swiftsimio")
    io.write_catalogue_content(
        tmp_path / "fof_output_0000.hdf5", content if ids else replace(content, ids=None), "swift"
    )
    data = swiftsimio.load(str(tmp_path / "fof_output_0000.hdf5"))
    groups = data.fof_groups

    def physical(column: Any, unit: str) -> np.ndarray:
        return column.to_physical().to(unit).v

    catalogue = content.catalogue
    np.testing.assert_array_equal(groups.sizes.v, catalogue.count)
    np.testing.assert_array_equal(groups.group_ids.v, np.arange(1, 7))
    np.testing.assert_allclose(physical(groups.masses, "g"), catalogue.mass * 1e10 * MSUN / H, rtol=1e-5)
    np.testing.assert_allclose(physical(groups.centres, "cm"), catalogue.com_pos * KPC * A / H, rtol=1e-5)
    np.testing.assert_allclose(physical(groups.com_vel, "km/s"), catalogue.com_vel, rtol=1e-5)
    np.testing.assert_allclose(physical(groups.r200c, "cm"), content.extra["r200c"].values * KPC * A / H, rtol=1e-5)
    assert data.metadata.z == 1
    assert data.metadata.cosmology.h == pytest.approx(H, rel=1e-5)
    assert data.metadata.cosmology.Om0 == 0.3
