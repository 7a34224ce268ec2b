"""Read the options of the call that made an output of any kind."""

from pathlib import Path

from ._attributes import text_attribute
from ._files import PathLike, open_hdf5

_GROUPS = ("FriendsOfFriends", "Neighbours", "Correlation")


def read_made_with(path: PathLike) -> str | None:
    """Return the options that made a catalogue, in any layout, a file of neighbours or a correlation function.

    Returns:
        None if the file does not store them.

    Raises:
        SnapshotError: If it cannot be read.
    """
    with open_hdf5(Path(path)) as file:
        return next((text_attribute(file[name], "made_with") for name in _GROUPS if name in file), "") or None
