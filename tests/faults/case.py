"""A case: a script for several processes, and a judge of how they ended.

The program, with the moments at which a fault may happen:

    before      initialize      started      a mesh, data and the computation      meshed      the first run
    between     several runs, before one of them: loop      last      the end of Python: atexit

During a run, the fault may also happen in a thread (during) or in a host callback (debug callback, pure callback), and
in the first run in the function being traced (traced).
"""

import re
import textwrap
from dataclasses import dataclass

import numpy as np

from .kinds import DURING, KINDS, Kind

LIMIT = 60.0  # seconds from the start of the processes; longer if they are still working
_IMPORTS = "import atexit, ctypes, logging, multiprocessing, os, signal, subprocess, sys, threading, time"
_PLAIN = """
rank_sum = lambda: jax.lax.psum(jax.lax.axis_index("ranks"), "ranks")
total = jax.jit(jax.shard_map(rank_sum, mesh=mesh, in_specs=(), out_specs=jax.P()))
"""
_MAPPED = """
def summed(x, number):
    device, _, _ = jz.comm.get_rank_info()
    {inside}
    return jz.comm.all_max(x.sum() * number)
summed.smap = jz.jax_ext.shard_map_constructor(summed, in_specs=(jax.P(-1), jax.P()), out_specs=jax.P(-1))
x, number = np.ones((mesh.size, 3), np.float32), 1.0
"""
# The computations: setup lines, and the expression for each run.
_WORKS = {
    "plain": (_PLAIN, "total()"),
    "mapped": (_MAPPED, "summed.smap(mesh, jit=True)(x, number)"),
    "knn": ("k, box = 4, 1.0", "jz.knn.knn.smap(mesh, jit=True)(jz.data.Pos(pos=pos), k, boxsize=box)[0]"),
    "labels": ("rlink = 0.2", "jz.fof.fof_labels.smap(mesh, jit=True)(jz.data.Pos(pos=pos), rlink)[1]"),
    "catalogue": (
        "rlink, least = 0.2, 2",
        "jz.fof.fof_and_catalogue.smap(mesh, jit=True)(jz.data.ParticleData(pos=pos), rlink, None, "
        "jz.config.FofConfig(catalogue=jz.config.CatalogueConfig(npart_min=least)))[1].count",
    ),
}
_POS = "pos = np.random.default_rng(1).random((mesh.size, 20, 3), np.float32)"
_OWN = "np.concatenate([np.ravel(shard.data) for shard in jax.tree.leaves({})[0].addressable_shards])"
_OTHER = (
    "def other(): return jz.density.knn_density.smap(mesh, jit=True)(jz.data.Pos(pos=np.ones((mesh.size, 9, 3))), 2)"
)
_CALLBACKS = {
    "debug callback": "jax.debug.callback(called, device)",
    "pure callback": "x += jz.comm.vary(jax.pure_callback(called, jax.ShapeDtypeStruct((), jnp.float32), device))",
}


@dataclass(frozen=True)
class Ended:
    """How a process ended. code: its exit code; None if it did not end."""

    code: int | None
    seconds: float
    output: str


@dataclass(frozen=True)
class Case:
    """The fault, its moment, the number of processes and of devices per process, and the process at fault."""

    kind: Kind
    moment: str
    work: str
    count: int
    devices: int
    rank: int
    step: int
    planted: str = ""

    def title(self) -> str:
        """Describe the case in words."""
        who = "each process" if self.kind.everyone else f"process {self.rank}"
        return (
            f"{who} of {self.count} ({self.devices} devices each, {self.work}) {self.kind.name}; moment: {self.moment}"
        )

    def script(self) -> str:
        """Return the script that all processes run."""
        at = self._at
        setup, run = _WORKS[self.work]
        inside = _CALLBACKS.get(self.moment, "") or at("traced")
        lines = [
            _IMPORTS,
            'rank = int(os.environ["JAX_PROCESS_ID"])',
            "import jax, jax.numpy as jnp, numpy as np, jztree as jz",
            self.planted.strip(),
            self.kind.setup,
            at("before"),
            f"jz.launch.initialize({self.kind.options})",
            at("started"),
            'mesh = jax.make_mesh((jax.device_count(),), ("ranks",))',
            _POS if self.work not in ("plain", "mapped") else "",
            self._called(),
            setup.strip().replace("{inside}", textwrap.indent(inside, "    ").strip() or "pass"),
            f"def work(): return {_OWN.format(run)}",
            _OTHER if "other" in self.kind.code else "",
            f"{_PLAIN.strip()}\nalone = lambda: np.asarray(total())" if "alone" in self.kind.code else "",
            at("meshed"),
            "first = work()",
            at("between"),
            at(DURING),
            f"for step in range({10**6 if self.moment == DURING and self.kind.said else 4}):",
            *([textwrap.indent(at("loop"), "    ")] if self.moment == "loop" else []),
            "    again = work()",
            "assert (again == first).all()",
            at("atexit"),
            'print("went well", flush=True)',
            at("last"),
        ]
        return "\n".join(line for line in lines if line) + "\n"

    def _at(self, moment: str) -> str:
        """Return the code of the fault if it happens at ``moment``, otherwise an empty string."""
        if moment != self.moment:
            return ""
        code = self.kind.code
        body = textwrap.indent(code, "    ")
        who = "" if self.kind.everyone else f"rank == {self.rank}"
        if moment == "loop":
            who = " and ".join(filter(None, [who, f"step == {self.step}"]))
        if moment in (DURING, "atexit"):
            body = f"    def fault():\n{textwrap.indent(body, '    ')}\n    "
            body += (
                "atexit.register(fault)" if moment == "atexit" else f"threading.Timer({0.1 * self.step}, fault).start()"
            )
        return f"if {who or True}:\n{body}"

    def _called(self) -> str:
        if self.moment not in _CALLBACKS:
            return ""
        device = self.rank * self.devices + self.step % self.devices
        body = textwrap.indent(self.kind.code, "        ")
        return f"def called(device):\n    if device == {device}:\n{body}\n    return np.float32(0)"

    def environments(self, address: str) -> list[dict[str, str]]:
        """Return the environment variables of each process, without those shared by all processes."""
        return [
            {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(self.count), "JAX_PROCESS_ID": str(rank)}
            | (dict(self.kind.env) if rank == self.rank else {})
            for rank in range(self.count)
        ]

    def wrong(self, ended: list[Ended]) -> str:
        """Describe the first unexpected ending, in the same words for all cases of a fault; empty if all is well."""
        for rank, one in enumerate(ended):
            at_fault = self.kind.everyone or rank == self.rank
            found = self._wrong_of_one(one, at_fault)
            if found:
                return f"{'the process at fault' if at_fault else 'another process'} {found}"
        return ""

    def _wrong_of_one(self, one: Ended, at_fault: bool) -> str:
        kind = self.kind
        wanted = kind.also if at_fault else kind.said
        wanted = wanted.replace("{rank}", str(self.rank)).replace("{count}", str(self.count))
        if one.code is None and not (at_fault and not kind.own):
            return "had not ended in time"
        if wanted and not re.search(wanted, one.output):
            return f"ended with {one.code} without the sentence {wanted!r}"
        well = not kind.said and not kind.also
        if at_fault and kind.own and one.code not in kind.own:
            return f"ended with {one.code}, not {kind.own}"
        if not at_fault and (one.code == 0) != well:
            return f"ended with {one.code}"
        if well and re.search("^jztree:", one.output, re.MULTILINE):
            return "says something although all is well"
        if well and "went well\n" not in one.output:
            return "has not come to its last line"
        for word in ("Fatal Python error", "terminate called"):
            if word in one.output and one.code != -11 and "external/gloo" not in one.output:
                return f"ends in a crash: {word}"
        return ""


def drawn(seed: int, number: int) -> Case:
    """Return case ``number``. Each run of ``len(KINDS)`` cases contains every kind once."""
    turn, place = divmod(number, len(KINDS))
    kind = KINDS[np.random.default_rng([seed, turn]).permutation(len(KINDS))[place]]
    random = np.random.default_rng([seed, number, 1])
    count = int(random.choice([2, 2, 3, 4]))
    # Most programs are small, so they compile quickly.
    works = kind.works or (*["plain"] * 5, *["mapped"] * 7, "knn", "labels", "catalogue")
    return Case(
        kind=kind,
        moment=str(random.choice(kind.moments)),
        work=str(random.choice(works)),
        count=count,
        devices=int(random.integers(1, 3)),
        rank=int(random.integers(count)),
        step=int(random.integers(4)),
    )
