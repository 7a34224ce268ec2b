"""What this process waits for: mapped functions that have not returned, and arrays that devices have yet to fill."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

_lock = threading.Lock()
_calls: list["Call"] = []


@dataclass(frozen=True, eq=False)
class Call:
    """A mapped function that is running. processes: those that take part."""

    name: str
    processes: frozenset[int]


@contextlib.contextmanager
def calling(name: str, processes: Iterable[int]) -> Iterator[None]:
    """While the block runs, this process is in a call with ``processes``."""
    call = Call(name, frozenset(processes))
    with _lock:
        _calls.append(call)
    try:
        yield
    finally:
        with _lock:
            _calls.remove(call)


class Waits:
    """What this process waits for at one moment, which may be over at another."""

    def __init__(self, processes: frozenset[int] | None = None) -> None:
        """processes: only what one of these takes part in."""
        with _lock:
            self.calls = [call for call in _calls if processes is None or call.processes & processes]
        pending = [array for array in _live_arrays() if _is_pending(array)]
        self.arrays = [array for array in pending if processes is None or _processes_of(array) & processes]

    def still(self) -> str:
        """What of it has not ended yet, in words; empty if all has."""
        with _lock:
            call = next((call for call in self.calls if call in _calls), None)
        if call is not None:
            return call.name
        array = next((array for array in self.arrays if _is_pending(array)), None)
        return "" if array is None else f"an array of shape {array.shape}"


def seconds_of_work() -> float:
    """How long the processors were at work for this process so far."""
    return time.process_time()


def _live_arrays() -> list[jax.Array]:
    """Those of all devices; none where no device is in use, because asking JAX for them would start all."""
    from jax._src import xla_bridge  # noqa: PLC0415 - there is no public way to know

    return jax.live_arrays() if xla_bridge.backends_are_initialized() else []


def _is_pending(array: jax.Array) -> bool:
    with contextlib.suppress(RuntimeError):  # it may be deleted at any time
        return not array.is_deleted() and not array.is_ready()  # type: ignore[attr-defined]
    return False


def _processes_of(array: jax.Array) -> frozenset[int]:
    devices: set[Any] = array.sharding.device_set
    return frozenset(device.process_index for device in devices)
