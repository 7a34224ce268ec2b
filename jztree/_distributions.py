"""Other distributions that bring a package of this name, which cannot be installed beside this one.

Importing this is what looks for them.
"""

import importlib.metadata

_OTHERS = ("jztree-cu12", "jztree-cu13")


def _check_alone() -> None:
    """Raise ImportError if files of another distribution may have taken the place of some of these."""
    for name in _OTHERS:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        raise ImportError(
            f"{name} {version} is installed in this environment, and its package is called jztree like this one, so "
            f"files of one have overwritten files of the other; uninstall both, jztree and {name}, and install the one "
            "that is wanted."
        )


_check_alone()
