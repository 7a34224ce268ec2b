"""What scripts need around `jztree`: test distributions, snapshots and catalogues on disk, pictures, a command line."""

from typing import Any


def __getattr__(name: str) -> Any:
    """`KDTree`, imported when it is asked for."""
    if name == "KDTree":
        from .kdtree import KDTree  # noqa: PLC0415

        return KDTree
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
