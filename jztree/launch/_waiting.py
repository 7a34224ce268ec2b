"""Observe the pending work of this process: mapped functions that have not returned, and arrays not yet computed."""

import ast
import contextlib
import inspect
import linecache
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import jax

_lock = threading.Lock()
_calls: list["Call"] = []
_begun: Counter[frozenset[int]] = Counter()

_LOOK_SECONDS = 0.25  # between two samples of the thread states
# Largest fraction of samples with a running thread in a process that only waits. Threads of gRPC, for example, want a
# processor for an instant, and on a busy machine wait for it. A process that computes has a running thread in all
# samples.
_AT_WORK = 0.4
_JAX = Path(jax.__file__).parent
# Files in which JAX calls host functions, which may wait for a disk, for example.
_CALLBACKS = (str(Path("jax", "_src", "callback.py")), str(Path("jax", "_src", "debugging.py")))


@dataclass(frozen=True, eq=False)
class Call:
    """A running mapped function.

    Attributes:
        name: Its name.
        processes: Its participants.
        number: Number of earlier calls with the same participants.
    """

    name: str
    processes: frozenset[int]
    number: int


@contextlib.contextmanager
def calling(name: str, processes: Iterable[int]) -> Iterator[None]:
    """Mark this process as being in a call with ``processes`` while the block runs."""
    with _lock:
        participants = frozenset(processes)
        call = Call(name, participants, _begun[participants])
        _begun[participants] += 1
        _calls.append(call)
    try:
        yield
    finally:
        with _lock:
            _calls.remove(call)


@dataclass(frozen=True)
class Done:
    """Progress of an ended process.

    Attributes:
        devices: Whether it had started them.
        calls: Number of calls begun, by participants.
    """

    devices: bool
    calls: dict[str, int]

    @staticmethod
    def of_this_process() -> "Done":
        """Return the progress of this process."""
        with _lock:
            return Done(_devices_are_started(), {_key(processes): count for processes, count in _begun.items()})


class Waits:
    """The pending work of this process at one moment."""

    def __init__(self, processes: frozenset[int] | None = None) -> None:
        """Collect the pending work.

        A part of an array that several processes have filled is an array of this process alone. So pending arrays of
        this process are `unknown` if nothing names the participants.

        Args:
            processes: Include only work with one of these participants, if the participants can be observed.
        """
        with _lock:
            self.calls = [call for call in _calls if processes is None or call.processes & processes]
        pending = [array for array in _live_arrays() if _is_pending(array)]
        self.arrays = [array for array in pending if processes is None or _processes_of(array) & processes]
        self.unknown = [] if processes is None else [array for array in pending if len(_processes_of(array)) == 1]
        self.called = _called_in_jax()

    def participants(self) -> frozenset[int]:
        """Return the processes that take part."""
        return frozenset().union(*(call.processes for call in self.calls), *map(_processes_of, self.arrays))

    def still(self) -> str:
        """Describe the first item that is still pending; return "" if nothing is."""
        with _lock:
            call = next((call for call in self.calls if call in _calls), None)
        if call is not None:
            return call.name
        array = next((array for array in self.arrays if _is_pending(array)), None)
        return "" if array is None else f"an array of shape {array.shape}"

    def still_unknown(self) -> str:
        """Describe a pending item with unknown participants, including the current JAX call.

        The arrays of that call do not exist yet.
        """
        array = next((array for array in self.unknown if _is_pending(array)), None)
        return self.still_called() if array is None else f"an array of shape {array.shape}"

    def still_called(self) -> str:
        return self.called if self.called == _called_in_jax() else ""

    def still_anything(self) -> str:
        return self.still() or self.still_unknown()


def lacks(ended: dict[int, Done]) -> str:
    """Describe a call of this process that one of the ``ended`` processes will never make; return "" without such a
    call.
    """
    if _devices_are_starting() and not all(done.devices for done in ended.values()):
        return "the start of its devices"
    with _lock:
        for call in _calls:
            counts = [done.calls.get(_key(call.processes), 0) for rank, done in ended.items() if rank in call.processes]
            if counts and min(counts) <= call.number:
                return call.name
    return ""


def is_idle(seconds: float, over: Callable[[], bool]) -> bool:
    """Return whether the threads of this process only wait for ``seconds``; False as soon as ``over()`` is true.

    A process is not idle if it was suspended meanwhile, waits for a processor, or is in a host callback.
    """
    looks, at_work = max(round(seconds / _LOOK_SECONDS), 1), 0
    for _ in range(looks):
        start, before = time.monotonic(), time.process_time()
        time.sleep(_LOOK_SECONDS)
        if over() or time.monotonic() - start > 8 * _LOOK_SECONDS or _in_callback():
            return False
        at_work += _has_thread_at_work(time.process_time() - before)
        if at_work > _AT_WORK * looks:
            return False
    return True


def on_cpus() -> bool:
    """Return whether device activity shows in the threads of this process."""
    return not _devices_are_starting() and (not _devices_are_started() or jax.default_backend() == "cpu")


def _has_thread_at_work(used: float) -> bool:
    """Return whether another thread runs or is runnable.

    Args:
        used: Processor seconds since the last sample.
    """
    own = threading.get_native_id()
    try:
        states = [
            stat.read_text().rpartition(")")[2].split()[0]
            for stat in Path("/proc/self/task").glob("*/stat")
            if stat.parent.name != str(own)
        ]
    except OSError:  # not Linux, or a thread has ended
        return used > _AT_WORK * _LOOK_SECONDS
    return any(state in "RD" for state in states)


def _in_callback() -> bool:
    for frame in sys._current_frames().values():
        at: Any = frame
        while at is not None:
            if at.f_code.co_filename.endswith(_CALLBACKS):
                return True
            at = at.f_back
    return False


def _called_in_jax() -> str:
    """Describe the JAX call that the main thread waits in; return "" if it is not in JAX.

    XLA runs small computations in the calling thread. A compiled function is called from C, so no line of JAX is on the
    stack then, and the source line shows the called function.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return ""
    line = f"line {frame.f_lineno} of {frame.f_code.co_filename}"
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(_JAX):
        return "" if "cache" in path.name else line  # the cache may be on a slow disk
    with contextlib.suppress(Exception):
        first, last, start, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        assert first is not None
        assert last == first
        source = linecache.getline(frame.f_code.co_filename, first).encode()[start:end].decode()
        call = ast.parse(source, mode="eval").body
        if isinstance(call, ast.Call) and type(_named(call.func, frame)).__name__ == "PjitFunction":
            return line
    return ""


def _named(node: ast.expr, frame: FrameType) -> Any:
    """Return the object that a name with attributes refers to in a frame."""
    if isinstance(node, ast.Attribute):
        return inspect.getattr_static(_named(node.value, frame), node.attr)  # runs no user code
    assert isinstance(node, ast.Name)
    return frame.f_locals[node.id] if node.id in frame.f_locals else frame.f_globals[node.id]


def _key(processes: frozenset[int]) -> str:
    return ",".join(map(str, sorted(processes)))


def _devices_are_started() -> bool:
    from jax._src import xla_bridge  # noqa: PLC0415 - there is no public way to know

    return not _devices_are_starting() and xla_bridge.backends_are_initialized()


def _devices_are_starting() -> bool:
    """Return whether a thread is starting the devices, which needs all processes. It then holds JAX's lock."""
    from jax._src import xla_bridge  # noqa: PLC0415 - there is no public way to know

    if not xla_bridge._backend_lock.acquire(blocking=False):
        return True
    xla_bridge._backend_lock.release()
    return False


def _live_arrays() -> list[jax.Array]:
    """Return the arrays on all devices; none if no device is in use, because querying JAX would start all devices."""
    return jax.live_arrays() if _devices_are_started() else []


def _is_pending(array: jax.Array) -> bool:
    with contextlib.suppress(RuntimeError):  # it may be deleted at any time
        return not array.is_deleted() and not array.is_ready()  # type: ignore[attr-defined]
    return False


def _processes_of(array: jax.Array) -> frozenset[int]:
    devices: set[Any] = array.sharding.device_set
    return frozenset(device.process_index for device in devices)
