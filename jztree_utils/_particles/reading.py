"""Reading the particles of a snapshot onto one device or many."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jztree.data import ParticleData, fits_float32

from .. import io
from .._report import is_quiet
from ..progress import progress
from .many_devices import ManyDevices
from .one_device import OneDevice
from .particles import MOST_ROWS, Particles

_LONGEST = 1e10  # box in float32, where cubes of lengths, and masses over these, must fit


@dataclass(frozen=True)
class Source:
    """Which particles of a snapshot are looked at.

    ptype: the type that is grouped. attach: types whose particles join the groups of the nearest of these; None is all
    others. options: how the snapshot is read.
    """

    path: Path
    ptype: int = 1
    attach: tuple[int, ...] | None = ()
    options: io.ReadOptions | None = None


def open_types(source: Source) -> list[io.Snapshot]:
    """The snapshot as each of its types sees it, the one that is grouped first. Raises like `io.open_snapshot`."""
    first = io.open_snapshot(source.path, source.ptype, source.options)
    others = first.types if source.attach is None else dict.fromkeys(source.attach, 1)
    wanted = [ptype for ptype, num in others.items() if num and ptype != source.ptype]
    return [first, *(io.open_snapshot(source.path, ptype, source.options) for ptype in wanted)]


def read_particles(snapshots: list[io.Snapshot], optional: tuple[str, ...], mesh: Mesh) -> Particles:
    """The particles of a snapshot on the devices of ``mesh``: positions, and of ``optional`` what all types have.

    snapshots: of `open_types`.
    Raises, on all processes if on any, SnapshotError, and ValueError if there are too many for the devices.
    """
    first = snapshots[0]
    with io.failing_together(mesh):
        shared = set.intersection(*(set(one.present(("pos",), optional)) for one in snapshots))
        names = [name for name in first.present(("pos",), optional) if name in shared]
        ndim = first.layout("pos")[1][0]
        check_fits(snapshots, mesh.size)
        id_dtype = _common_id_dtype(snapshots) if "id" in names else np.dtype(np.int64)
    wide = any(_needs_64_bits(one, names) for one in snapshots)
    about: dict[str, Any] = {
        "snapshots": snapshots,
        "ndim": ndim,
        "properties": frozenset(names),
        "wide": wide,
    }
    with jax.enable_x64(wide), io.failing_together(mesh):
        if mesh.size == 1:
            parts = [_read_all(one, names, wide) for one in snapshots]
            attached = {one.ptype: part for one, part in zip(snapshots[1:], parts[1:], strict=True)}
            return OneDevice(part=parts[0], attached=attached, **about)
        parts = [io.shard_snapshot(one, mesh, names, id_words=True, finite=True) for one in snapshots]
        if wide:
            parts = [replace(part, pos=jnp.asarray(part.pos, np.float64)) for part in parts]
        attached = {one.ptype: part for one, part in zip(snapshots[1:], parts[1:], strict=True)}
        return ManyDevices(part=parts[0], attached=attached, mesh=mesh, id_dtype=id_dtype, **about)


def _needs_64_bits(snapshot: io.Snapshot, names: list[str]) -> bool:
    """Whether float32 cannot hold what is in a snapshot, or what is computed of it: squares and cubes of lengths."""
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return True
    numbers = [name for name in ("pos", "mass", "vel") if name in names]
    shared = snapshot.shared_mass if "mass" in names else None
    stored = [snapshot.layout(name)[0] for name in numbers if name != "mass" or shared is None]
    lengths = np.atleast_1d(np.asarray(snapshot.header.boxsize, np.float64))
    far = (lengths > _LONGEST) | ((lengths > 0) & (lengths < 1 / _LONGEST))
    return np.dtype(np.float64) in stored or bool(far.any()) or not fits_float32(shared or 0.0)


def _common_id_dtype(snapshots: list[io.Snapshot]) -> np.dtype:
    """The type of integers that holds the identifiers of all types. Raises ValueError, in words, if there is none."""
    dtypes = {one.ptype: one.layout("id")[0] for one in snapshots}
    common = np.result_type(*dtypes.values())
    if common.kind not in "iu":
        held = " and ".join(f"{dtype} in type {ptype}" for ptype, dtype in dtypes.items())
        raise ValueError(
            f"The identifiers are {held}, which no type of integers can hold together; write them alike, or leave such "
            "types out of --attach."
        )
    return common


def check_fits(snapshots: list[io.Snapshot], ndev: int) -> None:
    """Raise ValueError, in words, if the particles are too many for the devices."""
    for snapshot in snapshots:
        if snapshot.num > MOST_ROWS * ndev:
            raise ValueError(
                f"The snapshot holds {snapshot.num} particles of type {snapshot.ptype}; one device takes {MOST_ROWS}, "
                f"and there {'is one' if ndev == 1 else f'are {ndev}'}."
            )


def _read_all(snapshot: io.Snapshot, names: list[str], wide: bool) -> ParticleData:
    """All of a snapshot on the host, with its progress told."""
    columns = {}
    with progress("read the snapshot", snapshot.num * len(names), "values", quiet=is_quiet()) as advance:
        for name in names:
            columns[name] = snapshot.read(name, advance=advance, finite=True)
    if wide:
        columns["pos"] = columns["pos"].astype(np.float64, copy=False)
    return ParticleData(**columns, num=snapshot.num, num_total=snapshot.num)
