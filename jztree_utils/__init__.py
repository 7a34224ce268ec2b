"""Tools around `jztree`: test distributions, snapshots and catalogues on disk, pictures, a command line."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `KDTree` at its first use."""
    if name == "KDTree":
        from .kdtree import KDTree  # noqa: PLC0415

        return KDTree
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
