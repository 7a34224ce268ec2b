"""Reading the particles of a snapshot onto one device or many."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jztree.data import ParticleData, fits_float32

from ... import io
from ...progress import progress
from .._report import is_quiet
from .many_devices import ManyDevices
from .one_device import OneDevice
from .particles import MOST_ROWS, Particles

_SLICE = 2**22  # number of masses that are read and summed at a time
_LONGEST = 1e10  # largest box in float32, where cubes of lengths, and masses over these, must not overflow


@dataclass(frozen=True)
class Source:
    """The particles of a snapshot to process.

    Attributes:
        path: The snapshot.
        ptype: The type that is grouped.
        attach: Types whose particles join the group of the nearest grouped particle; None means all others.
        options: Options for reading the snapshot.
        matter: Further types that count in spheres, inside and outside groups; None means all others.
    """

    path: Path
    ptype: int = 1
    attach: tuple[int, ...] | None = ()
    options: io.ReadOptions | None = None
    matter: tuple[int, ...] | None = ()


def open_types(source: Source) -> list[io.Snapshot]:
    """Open the snapshot once for each of its types, the grouped type first. Raises like `io.open_snapshot`."""
    first = io.open_snapshot(source.path, source.ptype, source.options)
    attached = first.types if source.attach is None else dict.fromkeys(source.attach, 1)
    required = [ptype for ptype, num in attached.items() if num and ptype != source.ptype]
    return [first, *(io.open_snapshot(source.path, ptype, source.options) for ptype in required)]


@dataclass(frozen=True)
class Matter:
    """The matter in spheres, in addition to the particles that may be in groups; ``words`` describes it."""

    snapshots: list[io.Snapshot]
    words: str


def open_matter(source: Source, snapshots: list[io.Snapshot]) -> Matter:
    """Open the types that count in spheres, in addition to those of ``snapshots``, which may be in groups.

    For omitted types, only masses are read, to report their sum.

    Raises:
        SnapshotError: If the snapshot is unusable; see `io.open_snapshot`.
    """
    read = {snapshot.ptype for snapshot in snapshots}
    rest = [io.open_snapshot(source.path, ptype, source.options) for ptype in snapshots[0].types if ptype not in read]
    ndim = snapshots[0].layout("pos")[1]
    counted, left = [], []
    for one in rest:
        required = source.matter is None or one.ptype in source.matter
        weighed = "mass" in one.present(("pos",), ("mass",))
        if required and weighed and one.layout("pos")[1] == ndim:
            counted.append(one)
        else:
            left.append(one)
    types = sorted({*read, *(snapshot.ptype for snapshot in counted)})
    words = f"type{'s' if len(types) > 1 else ''} {', '.join(map(str, types))}"
    unit = io.unit_name(snapshots[0].header, "mass")
    without = [_left_in_words(fields, unit) for fields in left]
    return Matter(counted, "; without ".join([words, *without]) if left else f"all matter, {words}")


def _left_in_words(snapshot: io.Snapshot, unit: str) -> str:
    """Describe a type that is omitted from spheres: number of particles, and mass in ``unit``."""
    words = f"type {snapshot.ptype} ({snapshot.num:,} particles"
    if "mass" not in snapshot.present(("pos",), ("mass",)):
        return f"{words} that have no mass)"
    if snapshot.shared_mass is None:
        starts = range(0, snapshot.num, _SLICE)
        slices = (snapshot.read("mass", start, min(start + _SLICE, snapshot.num)) for start in starts)
        mass = sum(float(rows.sum(dtype=np.float64)) for rows in slices)
    else:
        mass = snapshot.num * snapshot.shared_mass
    return f"{words}, {f'mass {mass:.6g} {unit}'.rstrip()})"


def read_particles(
    snapshots: list[io.Snapshot], optional: tuple[str, ...], mesh: Mesh, matter: Matter | None = None
) -> Particles:
    """Read particles of a snapshot onto the devices of ``mesh``: positions, and ``optional`` columns of all types.

    If one process fails, all processes raise.

    Args:
        snapshots: Result of `open_types`.
        optional: Names of columns that are read if the snapshot has them.
        mesh: The devices.
        matter: Result of `open_matter`, None without spheres.

    Raises:
        SnapshotError: If the snapshot is unusable.
        ValueError: If there are too many particles for the devices.
    """
    first = snapshots[0]
    with io.failing_together(mesh):
        names = common_properties(snapshots, optional)
        with_energies = [
            snapshot for snapshot in snapshots if "internal_energy" in snapshot.present(("pos",), optional)
        ]
        ndim = first.layout("pos")[1][0]
        others = [] if matter is None else matter.snapshots
        check_fits([*snapshots, *others], mesh.size)
        id_dtype = common_id_dtype(snapshots) if "id" in names else np.dtype(np.int64)
    of_others = tuple(name for name in optional if name in ("mass", "vel"))
    motions = [snapshot.present(("pos",), of_others) for snapshot in others]
    wide = any(needs_64_bits(snapshot, names) for snapshot in snapshots)
    wide |= any(needs_64_bits(snapshot, held) for snapshot, held in zip(others, motions, strict=True))
    about: dict[str, Any] = {
        "snapshots": snapshots,
        "ndim": ndim,
        "properties": frozenset(names),
        "wide": wide,
        "spheres_of": "" if matter is None else matter.words,
    }
    with jax.enable_x64(wide), io.failing_together(mesh):
        parts = [_read_one(snapshot, names, mesh, wide) for snapshot in snapshots]
        attached = {snapshot.ptype: part for snapshot, part in zip(snapshots[1:], parts[1:], strict=True)}
        around = {
            snapshot.ptype: _read_one(snapshot, held, mesh, wide)
            for snapshot, held in zip(others, motions, strict=True)
        }
        about |= {"part": parts[0], "attached": attached, "others": around}
        about["internal_energy"] = {snapshot.ptype: _read_energies(snapshot, mesh) for snapshot in with_energies}
        if mesh.size == 1:
            return OneDevice(**about)
        return ManyDevices(mesh=mesh, id_dtype=id_dtype, **about)


def common_properties(snapshots: list[io.Snapshot], optional: tuple[str, ...]) -> list[str]:
    """Return the names of positions and of the ``optional`` properties that every type has."""
    in_all = set.intersection(*(set(snapshot.present(("pos",), optional)) for snapshot in snapshots))
    return [name for name in snapshots[0].present(("pos",), optional) if name in in_all and name != "internal_energy"]


def _read_one(snapshot: io.Snapshot, names: list[str], mesh: Mesh, wide: bool) -> ParticleData:
    """Read the particles of one type onto the host, or distribute them to the devices of ``mesh``."""
    if mesh.size == 1:
        return _read_all(snapshot, names, wide)
    part = io.shard_snapshot(snapshot, mesh, names, id_words=True, finite=True)
    return replace(part, pos=jnp.asarray(part.pos, np.float64)) if wide else part


def _read_energies(snapshot: io.Snapshot, mesh: Mesh) -> Any:
    """Read the internal energies of one type onto the host, or distribute them to the devices of ``mesh``."""
    if mesh.size == 1:
        return snapshot.read("internal_energy", finite=True)
    read = functools.partial(snapshot.read, "internal_energy", finite=True)
    return io.shard_rows(read, snapshot.num, mesh)


def needs_64_bits(snapshot: io.Snapshot, names: list[str]) -> bool:
    """Return whether float32 is too narrow for values of the snapshot, or for squares and cubes of its lengths."""
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return True
    numbers = [name for name in ("pos", "mass", "vel") if name in names]
    shared = snapshot.shared_mass if "mass" in names else None
    stored = [snapshot.layout(name)[0] for name in numbers if name != "mass" or shared is None]
    lengths = np.atleast_1d(np.asarray(snapshot.header.boxsize, np.float64))
    far = (lengths > _LONGEST) | ((lengths > 0) & (lengths < 1 / _LONGEST))
    return np.dtype(np.float64) in stored or bool(far.any()) or not fits_float32(shared or 0.0)


def common_id_dtype(snapshots: list[io.Snapshot]) -> np.dtype:
    """Return the integer dtype for the identifiers of every type. Raises ValueError if no dtype fits."""
    dtypes = {snapshot.ptype: snapshot.layout("id")[0] for snapshot in snapshots}
    common = np.result_type(*dtypes.values())
    if common.kind not in "iu":
        held = " and ".join(f"{dtype} in type {ptype}" for ptype, dtype in dtypes.items())
        raise ValueError(
            f"The identifiers are {held}, but no integer dtype holds both; write them with the same dtype, or leave "
            "one type out of --attach."
        )
    return common


def check_fits(snapshots: list[io.Snapshot], ndev: int) -> None:
    """Raise ValueError if there are too many particles for the devices."""
    for snapshot in snapshots:
        if snapshot.num > MOST_ROWS * ndev:
            raise ValueError(
                f"The snapshot holds {snapshot.num} particles of type {snapshot.ptype}, but {ndev} "
                f"device{'' if ndev == 1 else 's'} can hold {MOST_ROWS * ndev}; use more devices."
            )


def _read_all(snapshot: io.Snapshot, names: list[str], wide: bool) -> ParticleData:
    """Read a whole snapshot onto the host, with a progress report."""
    columns, rows = {}, 0
    with progress("read the snapshot", snapshot.num, quiet=is_quiet()) as advance:

        def count(num: int) -> None:
            """Report particles instead of rows of columns."""
            nonlocal rows
            rows += num
            advance(rows // len(names) - (rows - num) // len(names))

        for name in names:
            columns[name] = snapshot.read(name, advance=count, finite=True)
    if wide:
        columns["pos"] = columns["pos"].astype(np.float64, copy=False)
        if snapshot.shared_mass is not None and "mass" in columns:
            columns["mass"] = np.float64(columns["mass"])  # JAX joins a float and float32 columns in float32
    return ParticleData(**columns, num=snapshot.num, num_total=snapshot.num)
