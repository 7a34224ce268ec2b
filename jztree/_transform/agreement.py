"""All processes make the same call: seen before it runs, where a difference would be a wrong answer or an endless wait.

A call in words (names, static arguments, shapes, what all devices share) has a hash, of which a small collective finds
out whether it is that of all processes. Only where it is not, and before the first call of all, do the words themselves
go through the coordinator: the error has to name the processes, and the first of them may come long before the last,
which XLA's collectives on CPUs allow once they are connected and not before.
"""

import functools
import hashlib
from collections.abc import Iterable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..launch import agree


def check_same(call: str, devices: Iterable[jax.Device]) -> None:
    """Raise ValueError on all processes that have some of the ``devices`` if they come to different calls."""
    spokesmen: dict[int, jax.Device] = {}
    for device in sorted(devices, key=lambda device: device.id):
        spokesmen.setdefault(device.process_index, device)
    if len(spokesmen) < 2:
        return
    together = _Together.of(tuple(spokesmen[process] for process in sorted(spokesmen)))
    if together.met and together.all_have(call):
        return
    agree(call, spokesmen)
    if not together.met:
        together.all_have(call)  # connects them while all are here; they wait for each other for 30 s at most then
        together.met = True


class _Together:
    """Processes that call something together, each with one of its devices. met: whether they have done so before."""

    def __init__(self, devices: tuple[jax.Device, ...]) -> None:
        self.met = False
        mesh = Mesh(np.array(devices), ("processes",))
        self.sharding = NamedSharding(mesh, P("processes"))
        self.most = jax.jit(
            jax.shard_map(
                lambda numbers: jax.lax.pmax(numbers, "processes"), mesh=mesh, in_specs=P("processes"), out_specs=P()
            )
        )

    @staticmethod
    @functools.cache
    def of(devices: tuple[jax.Device, ...]) -> "_Together":
        """The same object each time."""
        return _Together(devices)

    def all_have(self, call: str) -> bool:
        """Whether ``call`` is the same on all, as far as a hash of 128 bits can tell."""
        own = np.frombuffer(hashlib.blake2b(call.encode(), digest_size=16).digest(), np.uint32)
        # The largest of each number, and of each number's complement, which is the smallest of it.
        told = np.concatenate([own, ~own])[None]
        most = self.most(jax.make_array_from_process_local_data(self.sharding, told))
        return bool((np.asarray(most.addressable_data(0))[0] == told[0]).all())
