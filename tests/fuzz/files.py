"""Damaged files: each must be refused with one sentence, or the result must have the rows that were written.

To run a report, put the tests on the path (``PYTHONPATH=tests``), because it uses `damaged_files`.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from jztree_utils.io import SnapshotError

from .case import Case, Outcome, WrongError
from .inputs import pick

_CASES = 40
ROWS = 60

_MADE = f"""
import tempfile
from pathlib import Path
from fuzz.damaged_files import damage
from jztree_utils import io
kept = tempfile.TemporaryDirectory()
folder = Path(kept.name)
random = np.random.default_rng(7)
part = jz.data.ParticleData(pos=random.random(({ROWS}, 3), np.float32), vel=random.random(({ROWS}, 3), np.float32),
                            mass=random.random({ROWS}, np.float32), id=np.arange({ROWS}))
header = io.SnapshotHeader(boxsize=1.0, time=1.0, redshift=0.0)
io.write_snapshot(folder / "snapshot.hdf5", part, header)
np.save(folder / "positions.npy", part.pos)
pairs = jz.config.FofConfig(catalogue=jz.config.CatalogueConfig(npart_min=2))
catalogue = jz.fof.fof_and_catalogue(jz.data.PosMass(pos=part.pos, mass=part.mass), 0.15, 1.0, pairs)[1]
for layout in ("native", "gadget4"):
    io.write_catalogue(folder / f"{{layout}}.hdf5", catalogue, info=io.CatalogueInfo(header=header), layout=layout)
rad, idx = jz.knn.knn(part.pos, 4)
io.write_neighbours(folder / "neighbours.hdf5", io.Neighbours(distances=rad, indices=idx, id=part.id, header=header))
groups = int(catalogue.ngroups)
"""
# The reader of each file, and its number of rows.
_READERS = {
    "snapshot.hdf5": ("io.read_snapshot(path)[0]", "pos", str(ROWS)),
    "positions.npy": ("io.read_snapshot(path, fields=('pos',))[0]", "pos", str(ROWS)),
    "native.hdf5": ("io.read_catalogue(path)[0]", "count", "groups"),
    "gadget4.hdf5": ("io.read_catalogue(path)[0]", "count", "groups"),
    "neighbours.hdf5": ("io.read_neighbours(path)", "distances", str(ROWS)),
}
_LINES = """
original = {read}
path, told = damage(path, folder / "damaged", np.random.default_rng(seed))
found = {read}
rows = {rows}
"""


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield one file with many kinds of damage."""
    name = pick(random, *_READERS)
    read, column, rows = _READERS[name]
    for _ in range(_CASES):
        lines = f'path = folder / "{name}"' + _LINES.format(read=read, rows=rows)
        yield Case(lines, {"seed": int(random.integers(2**31))}, partial(_judge, column), setup=_MADE)


def _judge(column: str, values: dict[str, Any], outcome: Outcome) -> None:
    if outcome.error is not None:
        if not isinstance(outcome.error, SnapshotError):
            raise WrongError("a file that is refused by another error", "SnapshotError", repr(outcome.error))
        return
    original, result, rows = outcome["original"], outcome["found"], outcome["rows"]
    for name in getattr(result, "__dataclass_fields__", ()):
        old, new = getattr(original, name), getattr(result, name)
        if np.ndim(new) == 0 or not isinstance(new, np.ndarray):
            continue
        if len(new) != rows:
            raise WrongError(f"{name} was read with another number of rows", rows, (len(new), outcome["told"]))
        if np.ndim(old) > 0 and new.shape[1:] != np.shape(old)[1:]:
            raise WrongError(f"{name} was read in another shape", np.shape(old), (new.shape, outcome["told"]))
    if len(getattr(original, column)) != rows:
        raise WrongError("a file that is not damaged was read with another number of rows", rows, original)
