"""Opening HDF5 files with readable errors, and writing files so that they are complete or absent."""

import errno
import itertools
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import Any

import h5py

from .._file_messages import absent_file, missing_folder, no_regular_file
from .._memory import bytes_in_words, host_memory
from ._errors import OutputError, SnapshotError

PathLike = str | os.PathLike[str]
_unfinished: set[str] = set()  # temporary files of this process


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading; any error of the HDF5 library in the block becomes a `SnapshotError`.

    Args:
        path: The file.

    Raises:
        SnapshotError: If ``path`` is missing, not a file, not HDF5, truncated or damaged.
    """
    check_is_file(path)
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise _why_not_open(path, error) from None
    try:
        with file:
            yield file
    except SnapshotError:
        raise
    except MemoryError:
        raise too_large(path) from None
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:  # h5py raises all of these
        raise damaged(path, error) from error


def check_is_file(path: Path) -> None:
    """Raise SnapshotError unless ``path`` is a file. A pipe, for example, would block the reader forever."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise SnapshotError(absent_file(path)) from None
    except OSError as error:
        raise unreadable(path, error) from None
    if stat.S_ISDIR(mode):
        raise SnapshotError(f"{path} is a folder; give a file.")
    if not stat.S_ISREG(mode):
        raise SnapshotError(f"{path} is not a regular file; give a file with data.")


def unreadable(path: Path, error: OSError) -> SnapshotError:
    """Return the error for a file that the system refuses to open."""
    reason = os.strerror(error.errno) if error.errno else _reason(error)
    return SnapshotError(f"{path} cannot be read ({reason}); check its name and permissions.")


def damaged(path: Path, error: Exception) -> SnapshotError:
    """Return the error for a file with invalid contents."""
    return SnapshotError(f"{path} is truncated or damaged ({_reason(error)}); copy or write it again.")


def too_large(path: Path, needed: int | None = None) -> SnapshotError:
    """Return the error for a file whose contents do not fit into memory: ``needed`` bytes according to its header."""
    free = host_memory()
    need = "" if needed is None else f" ({bytes_in_words(needed)} for one column)"
    have = "" if free is None else f", of which {bytes_in_words(free)} are free"
    return SnapshotError(
        f"{path} does not fit{need} into the memory of this machine{have}; use a machine with more, or "
        "several machines, or copy the file again if it is smaller."
    )


def _why_not_open(path: Path, error: OSError) -> SnapshotError:
    """Return the error for an existing file that the HDF5 library cannot open."""
    try:
        with open(path, "rb"):
            pass
    except OSError as refused:
        return unreadable(path, refused)
    if not h5py.is_hdf5(path):
        return SnapshotError(f"{path} is not an HDF5 file; give an HDF5 file.")
    return damaged(path, error)


def _reason(error: Exception) -> str:
    """Return the message of the HDF5 library on one line, without its file coordinates."""
    return " ".join(str(error.args[0] if error.args else error).split()).rstrip(".")


def list_folder(folder: Path) -> list[Path]:
    """List a folder, sorted by name and without hidden files. Raises SnapshotError if it cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise SnapshotError(
            f"The folder {folder} cannot be listed ({error.strerror}); check its permissions."
        ) from None


def get_group(file: h5py.File, name: str) -> h5py.Group:
    """Return the group ``name`` of an open file. Raises SnapshotError if it is missing or a dataset."""
    group = _item(file, name)
    if not isinstance(group, h5py.Group):
        raise SnapshotError(f"{file.filename} has no group {name}; it holds {_names(file)}.")
    return group


def get_dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """Return the dataset ``name`` of an open file. Raises SnapshotError if it is missing or a group."""
    data = _item(file, name)
    if isinstance(data, h5py.Group):
        raise SnapshotError(f"{file.filename} holds {name} as a group, with {_names(data)}; name a dataset in it.")
    if not isinstance(data, h5py.Dataset):
        parent = file.get(name.rpartition("/")[0] or "/")
        whose = "its group" if "/" in name else "it"
        held = f"; {whose} holds {_names(parent)}" if isinstance(parent, h5py.Group) else ""
        raise SnapshotError(f"{file.filename} has no dataset {name}{held}.")
    return data


def _item(file: h5py.File, name: str) -> Any:
    """Return the item of a file with a name, or None. Raises the HDF5 error of an unreadable item; ``get`` does not."""
    item = file.get(name)
    if item is None:
        check_links(file, name)
    return file[name] if item is None and name in file else item


def check_links(file: h5py.File, name: str) -> None:
    """Raise SnapshotError if a link in the path ``name`` has no target. HDF5 names neither the link nor the target."""
    for path in itertools.accumulate(name.strip("/").split("/"), "{}/{}".format):
        link = file.get(path, getlink=True)
        if isinstance(link, h5py.SoftLink | h5py.ExternalLink) and file.get(path) is None:
            place = f" in the file {link.filename}" if isinstance(link, h5py.ExternalLink) else ""
            raise SnapshotError(
                f"{file.filename} holds {path} as a link to {link.path}{place}, which cannot be opened; copy the data "
                "that the link refers to, or write them again."
            )


def _names(group: h5py.Group) -> str:
    return ", ".join(sorted(str(name) for name in group)) or "nothing"


def output_path(path: PathLike) -> Path:
    """Return the target of ``path`` with symbolic links resolved, so that a link is not replaced by a file."""
    return Path(os.path.realpath(path))


def check_output(path: PathLike, *, apart_from: tuple[PathLike, ...] = ()) -> None:
    """Check that a file can be written, by creating and removing a temporary file. Call this first.

    Args:
        path: The file to write; it may exist, and is not changed.
        apart_from: Files that must not be overwritten, such as the input.

    Raises:
        OutputError: If the folder is missing or not writable, or ``path`` is a folder, a device, write-protected, or
            one of ``apart_from``.
    """
    target = output_path(path)
    if not os.path.basename(os.fspath(path)):
        raise OutputError(f"The output {os.fspath(path)!r} is not a file name; give one.", errno.EINVAL)
    folder = _mode(target.parent, path)
    if folder is None or not stat.S_ISDIR(folder):
        raise OutputError(missing_folder(path), errno.ENOENT)
    mode = _mode(target, path)
    if mode is not None and not stat.S_ISREG(mode):
        raise OutputError(no_regular_file(path))
    if mode is not None and not os.access(target, os.W_OK):
        raise OutputError(f"The output {path} exists and is write-protected; choose another name.", errno.EACCES)
    if any(target == output_path(path) for path in apart_from):
        raise OutputError(f"The output {path} would overwrite a file of the input; choose another name.")
    with _file_beside(target):
        pass


def _mode(place: Path, path: PathLike) -> int | None:
    """Return the kind and the permissions of a file or folder, None if ``place`` is missing.

    Raises:
        OutputError: If another system error occurs, such as a symbolic link to itself; the message is about ``path``.
    """
    try:
        return os.stat(place).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        sentence = f"The output {path} cannot be written ({error.strerror}); choose another name."
        raise OutputError(sentence, error.errno) from None


@contextmanager
def _file_beside(target: Path) -> Iterator[Path]:
    """Create an empty file in the folder of ``target``, with the permissions that a new ``target`` would have.

    If it still exists at the end, or when the user ends the process, it is removed.
    """
    temporary = temporary_beside(target, secrets.token_hex(6))
    _unfinished.add(str(temporary))
    try:
        create_empty(temporary, target)
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        _unfinished.discard(str(temporary))


def remove_unfinished() -> None:
    """Remove the files that this process has not finished writing. A signal handler calls this before it exits."""
    for path in list(_unfinished):
        with suppress(OSError):
            os.unlink(path)


def temporary_beside(target: Path, token: str) -> Path:
    """Return the name of a temporary file that will replace ``target``; ``token`` identifies the writer."""
    return target.parent / f".{target.name[:100]}.{token}.part"


def create_empty(temporary: Path, target: Path) -> None:
    """Create the file ``temporary``, which must not exist. Raises OutputError with a message about ``target``."""
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        sentence = f"The output {target} cannot be written ({error.strerror}); choose another place."
        raise OutputError(sentence, error.errno) from None


@contextmanager
def atomic_output(path: PathLike) -> Iterator[Path]:
    """Create a temporary file that replaces ``path`` if the block succeeds and is removed otherwise.

    Args:
        path: The file to write. The temporary file is in the same folder, so the replacement is atomic.

    Raises:
        OutputError: If ``path`` cannot be written, or the disk is full.
    """
    check_output(path)
    target = output_path(path)
    try:
        with _file_beside(target) as temporary:
            yield temporary
            os.replace(temporary, target)
    except OutputError:
        raise
    except OSError as error:
        sentence = f"Writing {path} failed ({_reason_written(error)}); nothing was written."
        raise OutputError(sentence, error.errno) from error


class _Sink:
    """Pass HDF5's output to a file; store the first error instead of raising it.

    If a write fails inside the HDF5 library, it can no longer close its file and crashes when the process ends. So the
    library gets no errors, and the writer checks ``error`` at the end.
    """

    def __init__(self, file: RawIOBase) -> None:
        self._file = file
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        length = len(view)
        while len(view) and self.error is None:
            view = view[self._try(self._file.write, view) :]
        return length

    def read(self, size: int) -> bytes:
        """Read bytes. h5py recognises a file object by this method, but reads with `readinto`."""
        data = bytearray(size)
        return bytes(data[: self.readinto(data)])

    def readinto(self, data: Any) -> int:
        return self._try(self._file.readinto, data)

    def seek(self, place: int, whence: int = 0) -> int:
        return self._try(self._file.seek, place, whence)

    def tell(self) -> int:
        return self._try(self._file.tell)

    def truncate(self, size: int) -> int:
        return self._try(self._file.truncate, size)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def _try(self, method: Callable[..., int | None], *arguments: Any) -> int:
        try:
            return method(*arguments) or 0
        except BaseException as error:  # an interrupt by the user must not get lost in the library either
            self.error = self.error or error
            return 0


@contextmanager
def create_hdf5(path: PathLike) -> Iterator[h5py.File]:
    """Create an HDF5 file for writing, like `atomic_output`. Raises OutputError, also for a full disk."""
    with atomic_output(path) as temporary, fill_hdf5(temporary) as file:
        yield file


@contextmanager
def fill_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open the empty file ``path`` for writing HDF5. Raises the OSError of the system on failure."""
    with open(path, "r+b", buffering=0) as raw:
        sink = _Sink(raw)
        try:
            with h5py.File(sink, "w") as file:
                yield file
        except Exception:
            if sink.error is None:
                raise
        if sink.error is not None:
            raise sink.error


def _reason_written(error: OSError) -> str:
    return error.strerror or _reason(error) or type(error).__name__
