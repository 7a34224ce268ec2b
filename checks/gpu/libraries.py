"""The libraries that are timed, each behind the same calls. Peers are used as their documentation says."""

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Timed = Callable[[], Any]


class Library:
    """Calls on particles on the device.

    Each method takes positions (a JAX array) and options, and returns a function without arguments that is timed.
    ``effort`` scales what the library wants to have allocated.
    """

    name: str
    package: str

    @staticmethod
    def does(what: str, options: dict[str, Any], n: int) -> bool:
        """Whether the library is timed on this."""
        return True

    def efforts(self) -> Iterator[float]:
        """Scales to try one after the other until the call succeeds."""
        yield 1.0

    def knn(self, pos: Any, effort: float, k: int, box: float) -> Timed:
        raise NotImplementedError

    def query(self, pos: Any, effort: float, k: int, box: float, query: Any) -> Timed:
        raise NotImplementedError

    def labels(self, pos: Any, effort: float, rlink: float, box: float) -> Timed:
        raise NotImplementedError

    def catalogue(self, pos: Any, effort: float, rlink: float, box: float, mass: Any, vel: Any) -> Timed:
        raise NotImplementedError

    def spheres(self, pos: Any, effort: float, rlink: float, box: float) -> Timed:
        raise NotImplementedError


class Ours(Library):
    """This library."""

    name = "ours"
    package = "jztree"

    def __init__(self) -> None:
        import jztree  # noqa: PLC0415

        self.jz = jztree

    def knn(self, pos: Any, effort: float, k: int, box: float) -> Timed:
        return lambda: self.jz.knn.knn.jit(pos, k=k, boxsize=box or None)

    def query(self, pos: Any, effort: float, k: int, box: float, query: Any) -> Timed:
        return lambda: self.jz.knn.knn.jit(pos, k=k, boxsize=box or None, part_query=query)

    def labels(self, pos: Any, effort: float, rlink: float, box: float) -> Timed:
        return lambda: self.jz.fof.fof_labels.jit(pos, rlink, box, output_order="z")

    def catalogue(self, pos: Any, effort: float, rlink: float, box: float, mass: Any, vel: Any) -> Timed:
        part = self.jz.data.ParticleData(pos=pos, mass=mass, vel=vel)
        return lambda: self.jz.fof.fof_and_catalogue.jit(part, rlink, box)

    def spheres(self, pos: Any, effort: float, rlink: float, box: float) -> Timed:
        """Three densities around the densest particle of each group, which are found before."""
        jz = self.jz
        grouped, cata = jz.fof.fof_and_catalogue.jit(jz.data.Pos(pos=pos), rlink, box)
        nearness = jz.density.knn_density.jit(grouped, 32, boxsize=box)
        densest = jz.halos.densest_particle.jit(grouped, cata, nearness)
        centre = jz.data.Pos(pos=densest.part.pos, num=cata.ngroups)
        density = [times * len(pos) / box**3 for times in (500 / 0.3, 200 / 0.3, 200)]
        return lambda: jz.overdensity.spherical_overdensity.jit(pos, centre, density, boxsize=box)


class Published(Library):
    """The published library of the same name, 1.1.0. What its buffers need is not known before: they are doubled until
    the call succeeds, and made smaller if the memory was not enough for the default.
    """

    name = "published"
    package = "jztree"

    @staticmethod
    def does(what: str, options: dict[str, Any], n: int) -> bool:
        return what not in ("stages", "distances", "spheres")

    def __init__(self) -> None:
        import jztree.config  # noqa: PLC0415
        import jztree.data  # noqa: PLC0415
        import jztree.fof  # noqa: PLC0415
        import jztree.knn  # noqa: PLC0415

        self.jz = jztree

    def efforts(self) -> Iterator[float]:
        yield from (1.0, 2.0, 4.0, 8.0, 16.0, 0.5, 0.25)

    def _config(self, kind: str, effort: float) -> Any:
        cfg = copy.deepcopy(getattr(self.jz.config, kind)())
        cfg.alloc_fac_ilist *= effort
        cfg.tree.alloc_fac_nodes *= max(effort, 1.0)
        return cfg

    def knn(self, pos: Any, effort: float, k: int, box: float) -> Timed:
        cfg = self._config("KNNConfig", effort)
        return lambda: self.jz.knn.knn.jit(pos, k=k, boxsize=box or None, cfg=cfg)

    def query(self, pos: Any, effort: float, k: int, box: float, query: Any) -> Timed:
        cfg = self._config("KNNConfig", effort)
        return lambda: self.jz.knn.knn.jit(pos, k=k, boxsize=box or None, part_query=query, cfg=cfg)

    def labels(self, pos: Any, effort: float, rlink: float, box: float) -> Timed:
        cfg = self._config("FofConfig", effort)
        return lambda: self.jz.fof.fof_labels.jit(pos, rlink=rlink, boxsize=box, cfg=cfg, output_order="z")

    def catalogue(self, pos: Any, effort: float, rlink: float, box: float, mass: Any, vel: Any) -> Timed:
        cfg = self._config("FofConfig", effort)
        part = self.jz.data.ParticleData(pos=pos, mass=mass, vel=vel, num=len(pos), num_total=len(pos))
        return lambda: self.jz.fof.fof_and_catalogue.jit(part, rlink=rlink, boxsize=box, cfg=cfg)


class Jaxkd(Library):
    """jaxkd, with its CUDA extension if that is there. Open boxes only."""

    name = "jaxkd"
    package = "jaxkd"

    def __init__(self) -> None:
        import importlib.util  # noqa: PLC0415

        import jaxkd  # noqa: PLC0415

        self.jaxkd = jaxkd
        self.cuda = importlib.util.find_spec("jaxkd_cuda") is not None

    @staticmethod
    def does(what: str, options: dict[str, Any], n: int) -> bool:
        return what == "knn" and not options["box"] and options["k"] in (8, 16) and n <= 10**6

    def knn(self, pos: Any, effort: float, k: int, box: float) -> Timed:
        import jax  # noqa: PLC0415

        call = jax.jit(lambda p: self.jaxkd.build_and_query(p, p, k=k, cuda=self.cuda)[::-1])
        return lambda: call(pos)


LIBRARIES: dict[str, type[Library]] = {library.name: library for library in (Ours, Published, Jaxkd)}


def opened(name: str) -> Library:
    return LIBRARIES[name]()


def comes_from(library: Library, folder: Path) -> bool:
    """Whether the library was imported from this folder and not from elsewhere."""
    import sys  # noqa: PLC0415

    place = Path(sys.modules[library.package].__file__ or "")
    return place.is_relative_to(folder)


def linking_length(b: float, n: int, side: float) -> float:
    return b * side / math.cbrt(n)


def digest(what: str, out: Any) -> dict[str, Any]:
    """A few numbers that two libraries have in common if their answers are the same."""
    import jax.numpy as jnp  # noqa: PLC0415

    if what in ("knn", "query"):
        rows = np.asarray(out[0][:: max(len(out[0]) // 10_000, 1)], np.float64)
        return {"finite": bool(np.isfinite(rows).all()), "sum of radii": float(rows.sum())}
    if what == "labels":
        label = out[1]
        groups = int(jnp.sum(label == jnp.arange(label.shape[0], dtype=label.dtype)))
        return {"finite": groups > 0, "groups": groups}
    if what == "spheres":
        count = np.asarray(out.count)
        return {"finite": True, "spheres": int((count > 0).sum()), "largest": int(count.max(initial=0))}
    ngroups = int(np.ravel(out[1].ngroups)[0])
    count = np.asarray(out[1].count).ravel()[:ngroups]
    return {"finite": True, "groups": ngroups, "grouped": int(count.sum()), "largest": int(count.max(initial=0))}
