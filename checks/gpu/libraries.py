"""The timed libraries, all with the same interface. Peers are used as documented.

A call takes positions on the device (a JAX array), an effort, which scales the allocations of the library, and options.
It returns a function without arguments, which is timed.
"""

import copy
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Timed = Callable[[], Any]


class Ours:
    """This library."""

    package = "jztree"
    efforts: tuple[float, ...] = (1.0,)  # to try in order until a call succeeds

    def __init__(self) -> None:
        for name in ("config", "data", "fof", "knn"):  # present in all libraries of this name
            importlib.import_module(f"jztree.{name}")
        self.jz: Any = sys.modules["jztree"]

    @staticmethod
    def does(what: str, options: dict[str, Any], n: int) -> bool:
        """Return whether the library is timed on this call."""
        return True

    def allocation(self, kind: str, effort: float) -> dict[str, Any]:
        """Return the arguments that set allocations: none, because array sizes determine them."""
        return {}

    def counts(self, n: int) -> dict[str, Any]:
        """Return the arguments of particles that give their number: none, because all rows are used."""
        return {}

    def knn(self, pos: Any, effort: float, k: int, box: float) -> Timed:
        more = self.allocation("KNNConfig", effort)
        return lambda: self.jz.knn.knn.jit(pos, k=k, boxsize=box or None, **more)

    def query(self, pos: Any, effort: float, k: int, box: float, query: Any) -> Timed:
        more = self.allocation("KNNConfig", effort)
        return lambda: self.jz.knn.knn.jit(pos, k=k, boxsize=box or None, part_query=query, **more)

    def labels(self, pos: Any, effort: float, rlink: float, box: float) -> Timed:
        more = self.allocation("FofConfig", effort)
        return lambda: self.jz.fof.fof_labels.jit(pos, rlink=rlink, boxsize=box, output_order="z", **more)

    def catalogue(self, pos: Any, effort: float, rlink: float, box: float, mass: Any, vel: Any) -> Timed:
        more = self.allocation("FofConfig", effort)
        part = self.jz.data.ParticleData(pos=pos, mass=mass, vel=vel, **self.counts(len(pos)))
        return lambda: self.jz.fof.fof_and_catalogue.jit(part, rlink=rlink, boxsize=box, **more)

    def spheres(self, pos: Any, effort: float, rlink: float, box: float) -> Timed:
        """Time three densities around the densest particle of each group, found before. For this library alone."""
        jz = self.jz
        grouped, cata = jz.fof.fof_and_catalogue.jit(jz.data.Pos(pos=pos), rlink, box)
        nearness = jz.density.knn_density.jit(grouped, 32, boxsize=box)
        densest = jz.halos.densest_particle.jit(grouped, cata, nearness)
        centre = jz.data.Pos(pos=densest.part.pos, num=cata.ngroups)
        density = [times * len(pos) / box**3 for times in (500 / 0.3, 200 / 0.3, 200)]
        return lambda: jz.overdensity.spherical_overdensity.jit(pos, centre, density, boxsize=box)

    def count_within(self, pos: Any, effort: float, radius: float, box: float) -> Timed:
        return lambda: self.jz.radius.count_within.jit(pos, radius, boxsize=box)

    def neighbours_within(self, pos: Any, effort: float, radius: float, box: float) -> Timed:
        return lambda: self.jz.radius.neighbours_within.jit(pos, radius, boxsize=box)

    def kernel_sums(self, pos: Any, effort: float, radius: float, box: float) -> Timed:
        return lambda: self.jz.radius.kernel_sums.jit(pos, radius, boxsize=box)

    def dbscan(self, pos: Any, effort: float, radius: float, box: float) -> Timed:
        return lambda: self.jz.fof.dbscan.jit(pos, radius, 10, boxsize=box)

    def pair_counts(self, pos: Any, effort: float, radius: float, box: float) -> Timed:
        """Time counts in 20 bins, up to a twentieth of the box; ``radius`` is that of the other fixed-radius calls."""
        edges = np.geomspace(min(radius, 0.01 * box), 0.05 * box, 21)
        return lambda: self.jz.radius.pair_counts.jit(pos, edges, boxsize=box)


class Published(Ours):
    """The published library of the same name, 1.1.0.

    The required buffer sizes are unknown in advance. They are doubled until the call succeeds, or reduced if the
    default exceeds the memory.
    """

    efforts = (1.0, 2.0, 4.0, 8.0, 16.0, 0.5, 0.25)

    @staticmethod
    def does(what: str, options: dict[str, Any], n: int) -> bool:
        return what in ("knn", "query", "labels", "catalogue")

    def allocation(self, kind: str, effort: float) -> dict[str, Any]:
        cfg = copy.deepcopy(getattr(self.jz.config, kind)())
        cfg.alloc_fac_ilist *= effort
        cfg.tree.alloc_fac_nodes *= max(effort, 1.0)
        return {"cfg": cfg}

    def counts(self, n: int) -> dict[str, Any]:
        return {"num": n, "num_total": n}


class Jaxkd:
    """jaxkd, with its CUDA extension if installed. Open boxes only."""

    package = "jaxkd"
    efforts: tuple[float, ...] = (1.0,)

    def __init__(self) -> None:
        self.jaxkd: Any = importlib.import_module("jaxkd")
        self.cuda = importlib.util.find_spec("jaxkd_cuda") is not None

    @staticmethod
    def does(what: str, options: dict[str, Any], n: int) -> bool:
        return what == "knn" and not options["box"] and options["k"] in (8, 16) and n <= 10**6

    def knn(self, pos: Any, effort: float, k: int, box: float) -> Timed:
        import jax  # noqa: PLC0415

        call = jax.jit(lambda p: self.jaxkd.build_and_query(p, p, k=k, cuda=self.cuda)[::-1])
        return lambda: call(pos)


Library = Ours | Jaxkd
LIBRARIES: dict[str, type[Library]] = {"ours": Ours, "published": Published, "jaxkd": Jaxkd}


def opened(name: str, folder: Path) -> Library:
    """Return a library. Raises ImportError if it is not imported from this folder."""
    library = LIBRARIES[name]()
    if not Path(sys.modules[library.package].__file__ or "").is_relative_to(folder):
        raise ImportError(f"{library.package} was not imported from {folder}")
    return library


def digest(what: str, out: Any) -> dict[str, Any]:
    """Return a few numbers that are equal for two libraries if their results are the same."""
    import jax.numpy as jnp  # noqa: PLC0415

    if what in ("knn", "query"):
        rows = np.asarray(out[0][:: max(len(out[0]) // 10_000, 1)], np.float64)
        return {"finite": bool(np.isfinite(rows).all()), "sum of radii": float(rows.sum())}
    if what == "labels":
        label = out[1]
        groups = int(jnp.sum(label == jnp.arange(label.shape[0], dtype=label.dtype)))
        return {"finite": groups > 0, "groups": groups}
    if what == "dbscan":
        return {"finite": True, "clusters": int(jnp.max(out[0], initial=-1)) + 1, "cores": int(jnp.sum(out[1]))}
    if what in ("count_within", "kernel_sums"):
        return {"finite": bool(jnp.all(jnp.isfinite(out))), "sum": float(np.asarray(out, np.float64).sum())}
    if what in ("neighbours_within", "pair_counts"):
        count = out.splits[-1] if what == "neighbours_within" else out.count
        return {"finite": True, "pairs": int(np.asarray(count).sum())}
    if what == "spheres":
        count = np.asarray(out.count)
        return {"finite": True, "spheres": int((count > 0).sum()), "largest": int(count.max(initial=0))}
    ngroups = int(np.ravel(out[1].ngroups)[0])
    count = np.asarray(out[1].count).ravel()[:ngroups]
    return {"finite": True, "groups": ngroups, "grouped": int(count.sum()), "largest": int(count.max(initial=0))}
