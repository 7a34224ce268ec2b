"""Detect the published package jz-tree, which cannot be installed next to this one.

Importing this module runs the check.
"""

import importlib.metadata
from pathlib import Path

# The distributions of jz-tree, and files that only its package has.
_OTHERS = ("jztree", "jztree-cu12", "jztree-cu13")
_FILES = ("_backend.py", "tools.py")


def _check_alone() -> None:
    """Raise ImportError if the other package is also installed, because it may have replaced files of this one."""
    conflicts = [f"{name} {version}" for name in _OTHERS if (version := _version(name))]
    conflicts += [f"its file {name}" for name in _FILES if (Path(__file__).parent / name).exists()]
    if conflicts:
        raise ImportError(
            f"the published package jz-tree is installed in this environment ({', '.join(conflicts)}). Its import name "
            "is jztree too, so an environment can hold only one of the two packages; uninstall jztree-native, "
            f"{', '.join(_OTHERS)}, and install the package that you want."
        )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


_check_alone()
