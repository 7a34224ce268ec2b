"""Time and memory from positions to subhaloes, on one CPU device.

    python checks/benchmarks/subhaloes.py [--snapshot FILE] [--runs 5] [--output results.jsonl]

Without a snapshot, the particles are nine copies of the sample of 48^3 particles, 995,328 in a box of 3 x 3 x 1.
"""

import argparse
import ctypes
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import Call, append_record, least_cpu_seconds, machine, seconds

import jztree as jz
from jztree_utils import ics, io

GRAVITY, HUBBLE = 43.0071, 100.0  # for Mpc/h, km/s and 1e10 Msun/h


def copies_of_sample() -> tuple[jz.data.ParticleData, Any]:
    """Return nine copies of the sample next to each other, in random order, and the box."""
    part, box = ics.cosmo_3d_sample()
    places = box * np.stack(np.indices((3, 3, 1)), -1).reshape(-1, 1, 3)
    pos = (np.asarray(part.pos) + places).reshape(-1, 3).astype(np.float32)
    vel = np.tile(np.asarray(part.vel), (9, 1))
    order = np.random.default_rng(1).permutation(len(pos))
    columns = {"pos": jnp.asarray(pos[order]), "vel": jnp.asarray(vel[order]), "mass": part.mass}
    return jz.data.ParticleData(**columns), np.array([3 * box, 3 * box, box])


def calls_of(part: jz.data.ParticleData, boxsize: Any) -> dict[str, Call]:
    """Return the search for groups, for subhaloes of these, and both."""
    rlink = 0.2 * float((np.prod(np.broadcast_to(boxsize, 3)) / len(part.pos)) ** (1 / 3))
    options = {"softening": rlink / 10, "boxsize": boxsize, "hubble": HUBBLE}

    def groups() -> Any:
        return jz.friends_of_friends.jit(part, rlink, boxsize=boxsize)

    grouped, catalogue = jax.block_until_ready(groups())
    return {
        "groups": groups,
        "subhaloes": lambda: jz.subhaloes.jit(grouped, catalogue, GRAVITY, **options),
        "subhaloes in phase space": lambda: jz.subhaloes.jit(
            grouped, catalogue, GRAVITY, **options, candidates="phase_space"
        ),
        "both": lambda: jz.subhaloes.jit(*groups(), GRAVITY, **options),
    }


def peak_memory(call: Call, part: jz.data.ParticleData) -> float:
    """Return the peak memory of a compiled call without its inputs and outputs, relative to the positions."""

    def status(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith(key)))

    jax.block_until_ready(jax.device_put(np.ones(3)) + 1)  # releases memory that JAX shares with NumPy
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: 0)(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    outputs = sum(leaf.nbytes for leaf in jax.tree.leaves(jax.block_until_ready(call())))
    return (status("VmHWM") - before - outputs) / part.pos.nbytes


def measure(part: jz.data.ParticleData, boxsize: Any, runs: int) -> dict[str, Any]:
    """Return all figures, ready for JSON."""
    calls = calls_of(part, boxsize)
    result = calls["subhaloes"]()
    return {
        "machine": machine(),
        "particles": len(part.pos),
        "largest subhalo": int(np.max(result.count)),
        "subhaloes": int(result.num),
        "runs": runs,
        "seconds": seconds(calls, runs),
        "CPU seconds": least_cpu_seconds(calls, runs),
        "peak memory over positions": peak_memory(calls["subhaloes"], part),
        "peak memory over positions, phase space": peak_memory(calls["subhaloes in phase space"], part),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshot", type=Path, help="a snapshot at redshift 0, in Mpc/h")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--output", type=Path, help="a file of records, to which a line is appended")
    args = parser.parse_args()
    part, boxsize = copies_of_sample()
    if args.snapshot is not None:
        read, header = io.read_snapshot(args.snapshot)
        part, boxsize = jax.tree.map(jnp.asarray, read), header.boxsize
    name = "nine copies of the sample" if args.snapshot is None else args.snapshot.name
    figures = {"set": name, **measure(part, boxsize, args.runs)}
    print(json.dumps(figures, indent=2))
    if args.output is not None:
        append_record(args.output, figures)


if __name__ == "__main__":
    main()
