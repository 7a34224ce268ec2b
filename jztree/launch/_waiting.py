"""What this process waits for: mapped functions that have not returned, and arrays that devices have yet to fill."""

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

_LOOK_SECONDS = 0.25  # between two looks at what the threads do
# So many of the looks, at most, find a thread at work in a process that only waits: threads of gRPC, say, which want a
# processor for an instant and on a busy machine wait for it. One that computes has a thread at work at all looks.
_AT_WORK = 0.4
_JAX = Path(jax.__file__).parent
# Where JAX calls functions of the host, which may wait for a disk, say.
_CALLBACKS = (str(Path("jax", "_src", "callback.py")), str(Path("jax", "_src", "debugging.py")))


@dataclass(frozen=True, eq=False)
class Call:
    """A mapped function that is running. processes: those that take part. number: how many before it had the same."""

    name: str
    processes: frozenset[int]
    number: int


@contextlib.contextmanager
def calling(name: str, processes: Iterable[int]) -> Iterator[None]:
    """While the block runs, this process is in a call with ``processes``."""
    with _lock:
        everyone = frozenset(processes)
        call = Call(name, everyone, _begun[everyone])
        _begun[everyone] += 1
        _calls.append(call)
    try:
        yield
    finally:
        with _lock:
            _calls.remove(call)


@dataclass(frozen=True)
class Done:
    """How far a process that has ended had come. devices: whether it had started them. calls: begun, by processes."""

    devices: bool
    calls: dict[str, int]

    @staticmethod
    def here() -> "Done":
        """How far this process has come."""
        with _lock:
            return Done(_devices_are_started(), {_key(processes): count for processes, count in _begun.items()})


class Waits:
    """What this process waits for at one moment, which may be over at another."""

    def __init__(self, processes: frozenset[int] | None = None) -> None:
        """processes: only what one of these takes part in, as far as it can be seen.

        A part of an array that several processes have filled is an array of this process alone; so what is pending
        here is `unknown` if nothing says who takes part.
        """
        with _lock:
            self.calls = [call for call in _calls if processes is None or call.processes & processes]
        pending = [array for array in _live_arrays() if _is_pending(array)]
        self.arrays = [array for array in pending if processes is None or _processes_of(array) & processes]
        self.unknown = [] if processes is None else [array for array in pending if len(_processes_of(array)) == 1]
        self.called = _called_in_jax()

    def who(self) -> frozenset[int]:
        """The processes that take part in it."""
        return frozenset().union(*(call.processes for call in self.calls), *map(_processes_of, self.arrays))

    def still(self) -> str:
        """What of it has not ended yet, in words; empty if all has."""
        with _lock:
            call = next((call for call in self.calls if call in _calls), None)
        if call is not None:
            return call.name
        array = next((array for array in self.arrays if _is_pending(array)), None)
        return "" if array is None else f"an array of shape {array.shape}"

    def still_unknown(self) -> str:
        """The same of what is unknown; also what is called now, which gives an array only when it is done."""
        array = next((array for array in self.unknown if _is_pending(array)), None)
        return self.still_called() if array is None else f"an array of shape {array.shape}"

    def still_called(self) -> str:
        return self.called if self.called == _called_in_jax() else ""

    def still_anything(self) -> str:
        return self.still() or self.still_unknown()


def lacks(ended: dict[int, Done]) -> str:
    """What this process has begun and one of the ``ended`` ones never will, in words; empty if there is nothing."""
    if _devices_are_starting() and not all(done.devices for done in ended.values()):
        return "the start of its devices"
    with _lock:
        for call in _calls:
            counts = [done.calls.get(_key(call.processes), 0) for rank, done in ended.items() if rank in call.processes]
            if counts and min(counts) <= call.number:
                return call.name
    return ""


def is_idle(seconds: float, over: Callable[[], bool]) -> bool:
    """Whether the threads of this process do nothing but wait for so long; False as soon as it is ``over()``.

    A process that was suspended meanwhile is not idle, nor is one that waits for a processor, or in a host callback.
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
    """Whether what devices do can be seen in the threads of this process."""
    return not _devices_are_starting() and (not _devices_are_started() or jax.default_backend() == "cpu")


def _has_thread_at_work(used: float) -> bool:
    """Whether a thread but this one runs, or wants to. used: seconds of processors since the last look."""
    own = threading.get_native_id()
    try:
        states = [
            stat.read_text().rpartition(")")[2].split()[0]
            for stat in Path("/proc/self/task").glob("*/stat")
            if stat.parent.name != str(own)
        ]
    except OSError:  # no Linux, or a thread has ended
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
    """What the main thread has called of JAX and waits in, in words; empty if it does not.

    XLA computes what is small in the thread that asks for it. A compiled function is called from C, so no line of JAX
    is on the stack then, and the source says what is called there.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return ""
    line = f"line {frame.f_lineno} of {frame.f_code.co_filename}"
    path = Path(frame.f_code.co_filename)
    if path.is_relative_to(_JAX):
        return "" if "cache" in path.name else line  # which may be on a slow disk
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
    """What a name, with attributes, stands for in a frame."""
    if isinstance(node, ast.Attribute):
        return inspect.getattr_static(_named(node.value, frame), node.attr)  # runs nothing of the user's
    assert isinstance(node, ast.Name)
    return frame.f_locals[node.id] if node.id in frame.f_locals else frame.f_globals[node.id]


def _key(processes: frozenset[int]) -> str:
    return ",".join(map(str, sorted(processes)))


def _devices_are_started() -> bool:
    from jax._src import xla_bridge  # noqa: PLC0415 - there is no public way to know

    return not _devices_are_starting() and xla_bridge.backends_are_initialized()


def _devices_are_starting() -> bool:
    """Whether a thread is about to start the devices, for which it needs all processes. It holds JAX's lock then."""
    from jax._src import xla_bridge  # noqa: PLC0415 - there is no public way to know

    if not xla_bridge._backend_lock.acquire(blocking=False):
        return True
    xla_bridge._backend_lock.release()
    return False


def _live_arrays() -> list[jax.Array]:
    """Those of all devices; none where no device is in use, because asking JAX for them would start all."""
    return jax.live_arrays() if _devices_are_started() else []


def _is_pending(array: jax.Array) -> bool:
    with contextlib.suppress(RuntimeError):  # it may be deleted at any time
        return not array.is_deleted() and not array.is_ready()  # type: ignore[attr-defined]
    return False


def _processes_of(array: jax.Array) -> frozenset[int]:
    devices: set[Any] = array.sharding.device_set
    return frozenset(device.process_index for device in devices)
