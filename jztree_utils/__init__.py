"""Tools around `jztree`, by subject.

* Files: `io`. Samples of particles: `ics`.
* Statistics: `correlation`, `knn_statistics`, `mass_function`, `separation`. Catalogues on the sky: `sky`.
* Interoperability with SciPy, scikit-learn and PyTorch: `kdtree`, `estimators`, `torch_bridge`. Skewed cells: `cells`.
* Groups of more particles than memory holds: `large`.
* Pictures: `plot`, `view`.
* Command line: `cli`. Reports while a program runs: `progress`. Checks of a cluster: `check_cluster`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `KDTree` at its first use."""
    if name == "KDTree":
        from .kdtree import KDTree  # noqa: PLC0415

        return KDTree
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
