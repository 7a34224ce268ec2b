"""The timed libraries, all with the same interface. Peers are used as documented."""

import copy
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from .calls import CALLS, Timed


class Ours:
    """This library."""

    package = "jztree"
    efforts: tuple[float, ...] = (1.0,)  # to try in order until a call succeeds
    variables: Mapping[str, str] = MappingProxyType({})  # environment variables of the process

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

    def call(self, what: str, pos: Any, effort: float, **options: Any) -> Timed:
        """Return the call ``what`` of `calls.CALLS` on positions ``(n, 3)``."""
        return CALLS[what].call(self, pos, effort, **options)


class Unrecorded(Ours):
    """This library, with its kernels outside of command buffers."""

    variables = MappingProxyType({"JZTREE_COMMAND_BUFFERS": "0"})


class Published(Ours):
    """The published library of the same name, 1.1.0.

    The required buffer sizes are unknown in advance. They are doubled until the call succeeds, or reduced if the
    default exceeds the memory.
    """

    efforts = (1.0, 2.0, 4.0, 8.0, 16.0, 0.5, 0.25)

    @staticmethod
    def does(what: str, options: dict[str, Any], n: int) -> bool:
        return CALLS[what].published if what in CALLS else False

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
    variables: Mapping[str, str] = MappingProxyType({})

    def __init__(self) -> None:
        self.jaxkd: Any = importlib.import_module("jaxkd")
        self.cuda = importlib.util.find_spec("jaxkd_cuda") is not None

    @staticmethod
    def does(what: str, options: dict[str, Any], n: int) -> bool:
        return what == "knn" and not options["box"] and options["k"] in (8, 16) and n <= 10**6

    def call(self, what: str, pos: Any, effort: float, k: int, box: float) -> Timed:
        """Return a call that searches ``k`` neighbours."""
        import jax  # noqa: PLC0415

        search = jax.jit(lambda p: self.jaxkd.build_and_query(p, p, k=k, cuda=self.cuda)[::-1])
        return lambda: search(pos)


Library = Ours | Jaxkd
LIBRARIES: dict[str, type[Library]] = {"ours": Ours, "unrecorded": Unrecorded, "published": Published, "jaxkd": Jaxkd}


def opened(name: str, folder: Path) -> Library:
    """Return a library. Raises ImportError if it is not imported from this folder."""
    library = LIBRARIES[name]()
    if not Path(sys.modules[library.package].__file__ or "").is_relative_to(folder):
        raise ImportError(f"{library.package} was not imported from {folder}")
    return library
