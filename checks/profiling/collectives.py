"""The collectives of a mapped function, with their time in a simple model. Tracing finds them for any number of ranks,
without devices.

    python checks/profiling/collectives.py [--rows 100000] [--ranks 16 2048] [--latency 5e-6] [--bandwidth 25e9]

A collective takes steps * latency + messages * overhead + bytes / bandwidth, with the number of consecutive steps, of
messages that a rank sends, and of bytes through its network link. A gather or a sum over all ranks doubles its data in
every step. In an all_to_all, a single step, a rank sends a message to every other one. The three parameters are
assumptions about a network, not measured. A loop counts once. Both loops of an exchange are counted, one for many rows
and one for few. The model therefore overestimates the time for uniform particles.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import jztree as jz

GATHERS, SUMS, EXCHANGES, SHIFTS = {"all_gather"}, {"psum", "pmax", "pmin"}, {"all_to_all"}, {"ppermute"}


class Network(NamedTuple):
    """Latency of a message in seconds, overhead of sending one in seconds, and bandwidth in bytes per second."""

    latency: float
    overhead: float
    bandwidth: float


class Collective(NamedTuple):
    """The name of a collective, its consecutive steps, its messages per rank, and the bytes to or from a rank."""

    name: str
    steps: int
    messages: int
    bytes: int

    def seconds(self, network: Network) -> float:
        """Return the time of the collective in seconds."""
        return self.steps * network.latency + self.messages * network.overhead + self.bytes / network.bandwidth


def collectives_of(function: Callable[[Any], Any], ranks: int, rows: int) -> list[Collective]:
    """Return the collectives of a function of positions, mapped over ``ranks`` ranks with ``rows`` rows each."""
    mesh = AbstractMesh((ranks,), ("ranks",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P("ranks"), out_specs=P("ranks"))
    traced = jax.make_jaxpr(mapped)(jax.ShapeDtypeStruct((ranks * rows, 3), jnp.float32))
    return list(_collectives_in(traced.jaxpr, ranks))


def _collectives_in(jaxpr: Any, ranks: int) -> Iterator[Collective]:
    for equation in jaxpr.eqns:
        name = equation.primitive.name.removesuffix("_invariant").removesuffix("_reduced")
        size = sum(var.aval.size * var.aval.dtype.itemsize for var in equation.invars if hasattr(var.aval, "size"))
        groups = equation.params.get("axis_index_groups")
        among = len(groups[0]) if groups else ranks
        steps = math.ceil(math.log2(among))
        if name in GATHERS:
            yield Collective(name, steps, steps, (among - 1) * size)
        elif name in SUMS:
            yield Collective(name, steps, steps, 2 * size)
        elif name in EXCHANGES:
            yield Collective(name, 1, among - 1, size)
        elif name in SHIFTS:
            yield Collective(name, 1, 1, size)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _collectives_in(inner, ranks)


FUNCTIONS = {
    "sort": lambda pos: jz.tree.distr_zsort(pos, boxsize=1.0)[0],
    "kNN, k = 8": lambda pos: jz.knn.knn(pos, k=8, boxsize=1.0),
    "labels": lambda pos: jz.fof.distr_fof_labels(pos, 1e-3, boxsize=1.0)[1],
}


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model."""
    parser.add_argument("--latency", type=float, default=5e-6, help="seconds per step (default: %(default)s)")
    parser.add_argument("--overhead", type=float, default=2e-7, help="seconds per message (default: %(default)s)")
    parser.add_argument("--bandwidth", type=float, default=25e9, help="bytes per second (default: %(default)s)")


def network_of(arguments: argparse.Namespace) -> Network:
    """Return the network for the options."""
    return Network(arguments.latency, arguments.overhead, arguments.bandwidth)


def main() -> None:
    """Print one line per function and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="particles per rank (default: %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 128, 2048, 16384])
    add_network(parser)
    parser.add_argument("--each", action="store_true", help="also print every collective")
    arguments = parser.parse_args()
    network = network_of(arguments)
    for name, function in FUNCTIONS.items():
        for ranks in arguments.ranks:
            result = collectives_of(function, ranks, arguments.rows)
            print(f"{name}, {ranks} ranks: {len(result)} collectives, {_told(result, network)}", flush=True)
            for collective in result if arguments.each else ():
                print(f"  {collective.name}: {_told([collective], network)}")


def _told(result: list[Collective], network: Network) -> str:
    """Format the sums over collectives."""
    steps, messages, size = (
        sum(getattr(collective, of) for collective in result) for of in ("steps", "messages", "bytes")
    )
    milliseconds = 1e3 * sum(collective.seconds(network) for collective in result)
    return f"{steps} steps, {messages} messages, {size / 1e6:.3g} MB, {milliseconds:.3g} ms"


if __name__ == "__main__":
    main()
