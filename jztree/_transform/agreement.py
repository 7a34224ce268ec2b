"""Check that all processes make the same call before it runs, because a difference would cause wrong results or a hang.

A call in words (names, static arguments, shapes, shared values) has a hash. A small collective checks whether the hash
is the same on all processes. The words themselves go through the coordinator only if it is not, and before the first
call. The error has to name the processes, but these may arrive at very different times. XLA's collectives on CPUs allow
such a delay only after they are connected.
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
    """Raise ValueError on all processes that have some of the ``devices`` if their calls differ."""
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
        together.all_have(call)  # connects them while all are present; later they wait at most 30 s
        together.met = True


class _Together:
    """Processes that make a call together, each with one of its devices.

    Attributes:
        met: Whether they have done so before.
    """

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
        """Return the same object each time."""
        return _Together(devices)

    def all_have(self, call: str) -> bool:
        """Return whether ``call`` is the same on all processes, according to a 128-bit hash."""
        digest = np.frombuffer(hashlib.blake2b(call.encode(), digest_size=16).digest(), np.uint32)
        # The maximum of each number, and of its complement, which gives the minimum.
        published = np.concatenate([digest, ~digest])[None]
        most = self.most(jax.make_array_from_process_local_data(self.sharding, published))
        return bool((np.asarray(most.addressable_data(0))[0] == published[0]).all())
