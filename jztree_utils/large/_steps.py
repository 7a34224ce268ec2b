"""Steps of a long computation, whose results are files: after an interruption, a run continues with the next step.

Each result is complete or absent. Steps may also append rows to shared files. Each result stores the lengths of these
files, and a run that continues first cuts them to the lengths at its last complete step.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..io import OutputError

_LENGTHS, _ABOUT = "lengths of files", "run.json"
_FULL = "The disk of {} is full; free some space, and make the same call again, which continues the run."


class Result(Mapping[str, np.ndarray]):
    """The arrays of a step, each read from its file when it is used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getitem__(self, name: str) -> np.ndarray:
        with np.load(self._path) as arrays:
            return np.asarray(arrays[name])

    def __iter__(self) -> Iterator[str]:
        with np.load(self._path) as arrays:
            return iter(arrays.files)

    def __len__(self) -> int:
        return len(list(iter(self)))


def earlier_run(folder: Path) -> dict[str, Any]:
    """Return the input and the options of the run in a folder, or an empty dict without a run."""
    file = folder / _ABOUT
    return dict(json.loads(file.read_text())) if file.exists() else {}


class Steps:
    """The steps of one run, in a folder that belongs to this run alone."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Begin or continue a run.

        Args:
            folder: The folder; it is created if it is missing.
            about: The input and the options of the run, for JSON.

        Raises:
            ValueError: If the folder holds a run with other input or options, or other files.
        """
        self.folder = folder
        self._lengths: dict[str, int] = {}
        self._continues = True
        folder.mkdir(parents=True, exist_ok=True)
        file, described = folder / _ABOUT, json.dumps(about, indent=1, sort_keys=True)
        if earlier := earlier_run(folder):
            if earlier != json.loads(described):
                names = sorted(name for name in about if earlier.get(name) != json.loads(described)[name])
                raise ValueError(
                    f"The folder {folder} holds an unfinished run with another {' and '.join(names) or 'version'}; "
                    "remove the folder, or choose another one."
                )
        elif any(path.suffix != ".part" for path in folder.iterdir()):
            raise ValueError(f"The folder {folder} holds other files; choose an empty folder, or a new name.")
        else:
            with _atomic(file) as temporary:
                temporary.write_text(described)

    def result(self, name: str) -> Result:
        """Return the arrays of a complete step."""
        return Result(self.folder / f"{name}.npz")

    def is_complete(self, name: str) -> bool:
        """Return whether the arrays of a step exist."""
        return (self.folder / f"{name}.npz").exists()

    def step(self, name: str, compute: Callable[..., dict[str, Any]], *args: Any) -> Result:
        """Return the arrays of a step by name, which ``compute`` returns for ``args`` unless an earlier run did."""
        if not self.is_complete(name):
            if self._continues:
                self._cut_files()
            try:
                arrays = compute(*args) | {_LENGTHS: json.dumps(self._lengths)}
                with _atomic(self.folder / f"{name}.npz") as temporary, open(temporary, "wb") as file:
                    np.savez(file, **arrays)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise OutputError(_FULL.format(self.folder), errno.ENOSPC) from error
                raise
        result = self.result(name)
        self._lengths = json.loads(str(result[_LENGTHS]))
        return result

    def _cut_files(self) -> None:
        """Remove the rows that were written after the last complete step."""
        self._continues = False
        for path in self.folder.iterdir():
            if path.suffix == ".rows":
                with suppress(FileNotFoundError):  # another process has read it, and removes it
                    os.truncate(path, self._lengths.get(path.stem, 0))
            elif path.suffix == ".part":
                path.unlink()

    def append(self, name: str, rows: np.ndarray) -> None:
        """Append rows to a file. Call this only inside a step."""
        with open(self._rows(name), "ab") as file:
            file.write(np.ascontiguousarray(rows).view(np.uint8).data)
        self._lengths[name] = self._lengths.get(name, 0) + rows.nbytes

    def read(self, name: str, dtype: Any, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return the rows of a file from ``start`` to ``stop``, one-dimensional."""
        path, dtype = self._rows(name), np.dtype(dtype)
        if not path.exists():
            return np.empty(0, dtype)
        count = -1 if stop is None else stop - start
        return np.fromfile(path, dtype, count, offset=start * dtype.itemsize)

    def mapped(self, name: str, mode: Literal["r", "r+", "w+"], dtype: Any, num: int) -> np.ndarray:
        """Return a file of ``num`` rows, mapped into memory. Several processes may write different rows of it."""
        return np.memmap(self.folder / f"{name}.mapped", dtype, mode, shape=(num,)) if num else np.empty(0, dtype)

    def remove(self, name: str) -> None:
        """Remove a file of rows that no later step reads."""
        self._rows(name).unlink(missing_ok=True)

    def _rows(self, name: str) -> Path:
        return self.folder / f"{name}.rows"


@contextmanager
def _atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary file that becomes ``path`` if the block succeeds."""
    temporary = path.with_name(f"{path.name}.part")
    yield temporary
    os.replace(temporary, path)
