"""The host code of each rank that writes files: its own, and on rank 0 a joint file with virtual datasets.

A step must not raise, because the other ranks would hang. It returns a status instead, which all ranks share.
"""

import errno
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import replace as rename
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from ._files import check_output, create_empty, fill_hdf5, output_path, temporary_beside

_LOG = logging.getLogger("jztree")


class Reason(NamedTuple):
    """A reason for a failed write: the system errors that belong to it, and the sentence for the user."""

    errors: tuple[int, ...]
    sentence: str


_NOTHING_LEFT = "nothing was written; see the log of that rank for details."
# A status is 0, or the number of a reason in this table, from 1 on, times the number of ranks, plus the rank.
REASONS = (
    Reason((), f"rank {{0}} could not write its file of {{name}}; {_NOTHING_LEFT}"),
    Reason((errno.ENOENT, errno.ENOTDIR), f"the folder of {{name}} is missing on rank {{0}}, so {_NOTHING_LEFT}"),
    Reason(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        f"rank {{0}} has no permission to write to the folder of {{name}}, so {_NOTHING_LEFT}",
    ),
    Reason(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
        f"rank {{0}} has no space left for its file of {{name}}, so {_NOTHING_LEFT}",
    ),
)


class DatasetForm(NamedTuple):
    """A dataset: its name including groups, its shape without the rows (None: a number), and its dtype."""

    name: str
    shape: tuple[int, ...] | None
    dtype: np.dtype


@dataclass
class RankWriter:
    """The work on the host, in three steps; each is called once for every rank and returns a status.

    Files are written under temporary names, each for a single rank, so the steps share no memory.
    """

    base: Path
    ndev: int
    forms: list[DatasetForm]
    attrs: dict[str, dict[str, Any]]

    def __post_init__(self) -> None:
        self.token = secrets.token_hex(6)

    def write(self, rank: np.ndarray, counts: np.ndarray, *arrays: np.ndarray) -> int:
        """Write the file of the rank, and the joint file on rank 0, for ``(r, c)`` rows per rank and dataset."""

        def write_all() -> None:
            self._write_file(rank, lambda file: self._fill(file, counts[rank], arrays))
            if rank == 0:
                self._write_file(None, lambda file: self._fill_virtual(file, counts))

        return self._try(rank, write_all)

    def put_in_place(self, rank: np.ndarray, failed: np.ndarray) -> int:
        """Rename the file of the rank to its final name, or remove the output if any rank has failed."""

        def put_or_remove() -> None:
            if failed:
                self._remove_temporary(rank)
            else:
                self._put_in_place(rank)

        return self._try(rank, put_or_remove)

    def finish(self, rank: np.ndarray, failed_writing: np.ndarray, failed_placing: np.ndarray) -> int:
        """Rename the joint file once its sources exist, or remove the files if one is missing."""

        def finish_or_remove() -> None:
            if failed_placing:
                self._remove_temporary(rank)
                self._file(rank).unlink(missing_ok=True)
            elif rank == 0 and not failed_writing:
                self._put_in_place(None)

        return self._try(rank, finish_or_remove)

    def _try(self, rank: np.ndarray, step: Callable[[], None]) -> int:
        """Return the status of a step. This must not raise: the other ranks would hang."""
        try:
            step()
        except Exception as error:
            _LOG.exception("rank %d: writing %s failed", rank, self._file(rank))
            return _reason_number(error) * self.ndev + int(rank)
        return 0

    def _file(self, rank: Any) -> Path:
        return self.base.with_name(f"{self.base.name}.hdf5" if rank is None else f"{self.base.name}.{int(rank)}.hdf5")

    def _temporary(self, rank: Any) -> Path:
        which = "all" if rank is None else int(rank)  # long names are truncated, but must remain different
        return temporary_beside(output_path(self._file(rank)), f"{self.token}.{which}")

    def _put_in_place(self, rank: Any) -> None:
        try:
            rename(self._temporary(rank), output_path(self._file(rank)))
        except OSError:
            with suppress(OSError):
                os.unlink(self._temporary(rank))
            raise

    def _remove_temporary(self, rank: np.ndarray) -> None:
        for file in [rank] if rank else [rank, None]:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(self._temporary(file))

    def _write_file(self, rank: Any, fill: Callable[[h5py.File], None]) -> None:
        check_output(self._file(rank))
        temporary = self._temporary(rank)
        create_empty(temporary, output_path(self._file(rank)))
        with fill_hdf5(temporary) as file:
            fill(file)
            for name, attributes in self.attrs.items():
                (file[name] if name else file).attrs.update(attributes)

    def _fill(self, file: h5py.File, counts: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        for form, num, array in zip(self.forms, counts, arrays, strict=True):
            if form.shape is not None and not 0 <= num <= len(array):
                raise ValueError(
                    f"num is {num}, but {form.name} has {len(array)} rows; it must be from 0 to this number."
                )
            file.create_dataset(form.name, data=array if form.shape is None else array[:num])

    def _fill_virtual(self, file: h5py.File, counts: np.ndarray) -> None:
        file.attrs["num_files"] = self.ndev
        for place, form in enumerate(self.forms):
            nums = counts[:, place].astype(np.int64)
            stops = np.cumsum(nums)
            layout = h5py.VirtualLayout((stops[-1], *(form.shape or ())), form.dtype)
            for rank in np.flatnonzero(nums):
                source = () if form.shape is None else (nums[rank], *form.shape)
                rows = slice(stops[rank] - nums[rank], stops[rank])
                layout[rows] = h5py.VirtualSource(self._file(rank).name, form.name, source, form.dtype)
            file.create_virtual_dataset(form.name, layout, fillvalue=_missing(form.dtype))


def _missing(dtype: np.dtype) -> Any:
    """Return the value that a virtual dataset shows for a missing rank file: a conspicuous number."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if dtype.kind == "u" else np.iinfo(dtype).min
    return dtype.type(np.nan) if dtype.kind in "fc" else None


def _reason_number(error: Exception) -> int:
    """Return the number of the reason in the table, from 1 on; the first is for all other errors."""
    number = getattr(error, "errno", None)
    return next((place for place, reason in enumerate(REASONS, 1) if number in reason.errors), 1)
