"""Other distributions of a package of this name, which cannot be installed beside this one.

Importing this is what looks for them.
"""

import importlib.metadata
from pathlib import Path

# Of the published package jz-tree: what brings its kernels, and files of its package that are none of this one.
_OTHERS = ("jztree-cu12", "jztree-cu13")
_FILES = ("_backend.py", "tools.py")


def _check_alone() -> None:
    """Raise ImportError if the other package is installed too, as its files may have taken the place of these."""
    found = [f"{name} {version}" for name in _OTHERS if (version := _version(name))]
    found += [f"its file {name}" for name in _FILES if (Path(__file__).parent / name).exists()]
    if found:
        raise ImportError(
            f"the published package jz-tree is installed in this environment ({', '.join(found)}), and its package is "
            "called jztree like this one, so an environment can hold one of the two only; uninstall jztree and "
            f"{' and '.join(_OTHERS)}, and install the one that is wanted."
        )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


_check_alone()
