"""What an output tells of the call that made it, whatever kind of output it is."""

from pathlib import Path

from ._attributes import text_attribute
from ._files import PathLike, open_hdf5

_GROUPS = ("FriendsOfFriends", "Neighbours", "Correlation")


def read_made_with(path: PathLike) -> str | None:
    """The options with which a catalogue, in any layout, a file of neighbours or a correlation function was made.

    None if it does not tell.

    Raises SnapshotError if it cannot be read.
    """
    with open_hdf5(Path(path)) as file:
        return next((text_attribute(file[name], "made_with") for name in _GROUPS if name in file), "") or None
