"""Detect processes that wait in vain: for one that has ended, or all for each other.

A process that has ended keeps its pending calls alive, so its peers may rightly wait for an array that it takes part
in. They wait in vain if it made fewer calls than they did, or if it has no devices while theirs are about to start.
Other computations cannot be inspected. For these, all participants that have not ended must be seen to do nothing but
wait, at the same time and for some seconds: a process that is at work, asleep in Python, or suspended may still supply
the result. If none has ended, but all wait in JAX for each other for longer, they have called different functions.
"""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

from ._waiting import Done, Waits, is_idle, lacks, on_cpus

_ENDED, _IDLE = "jztree/launch/ended/", "jztree/launch/idle/"
# Time limits for a process that only waits: in general, if the participants are unknown, and if device activity cannot
# be observed.
_SECONDS, _UNKNOWN_SECONDS, _UNSEEN_SECONDS = 3.0, 4.0, 60.0
# Time limit if all processes wait and none has ended; two checks in a row must agree. A stalled network looks the same,
# so twice this limit is close to the 30 s after which gloo gives up.
_TOGETHER_SECONDS = 9.0
_LOOK_SECONDS, _REST_SECONDS = 0.5, 2.0
# Largest number of requests to the coordinator per second.
_ASKING = 200


class Ends:
    """The information of one process about the end of others.

    Attributes:
        over: Whether this process itself has ended.
    """

    def __init__(self, state: Any, over: Callable[[], bool]) -> None:
        self.client, self.me, self.count = state.client, int(state.process_id), int(state.num_processes)
        self.over = over
        self.idle = 0  # consecutive periods with nothing but waiting in this process
        self.seen: dict[int, int] = {}  # the same for the others, at the previous check

    def report(self) -> None:
        """Report to all processes that this process has ended, and the progress of its calls."""
        self.client.key_value_set(f"{_ENDED}{self.me}", json.dumps(dataclasses.asdict(Done.of_this_process())))

    def find_vain_wait(self) -> str:
        """Describe the call that waits in vain, and the ended processes; return "" without such a call. Takes some
        seconds.
        """
        ended = {process: Done(**json.loads(text)) for process, text in self.values_of(_ENDED).items()}
        waiting = self.lacking(ended) or self.idling(ended)
        if not waiting:
            time.sleep(max(_LOOK_SECONDS, self.count / _ASKING))
            return ""
        which = ", ".join(map(str, sorted(ended)))
        gone = f"process {which}, which has" if len(ended) == 1 else f"one of processes {which}, which have"
        return f"it waits in {waiting} for {gone} ended"

    def find_deadlock(self) -> str:
        """Describe a deadlock while no process has ended; return "" without a deadlock."""
        waits = Waits()
        if on_cpus() and self.waits_long(waits.still_anything, _TOGETHER_SECONDS):
            if self.all_idle(frozenset(range(self.count))):
                return (
                    f"it waits in {waits.still_anything()}, and all other processes also wait, but not for each other: "
                    "they have called different functions"
                )
        else:
            self.publish_idle(0)
            time.sleep(_REST_SECONDS)
        return ""

    def lacking(self, ended: dict[int, Done]) -> str:
        waiting = lacks(ended)
        if waiting:
            time.sleep(_LOOK_SECONDS)  # calls that are just returning are over then
        return waiting if lacks(ended) == waiting else ""

    def idling(self, ended: dict[int, Done]) -> str:
        waits, live = Waits(frozenset(ended)), frozenset(range(self.count)) - ended.keys()
        choices = [(waits.still, live & waits.participants(), _SECONDS if on_cpus() else _UNSEEN_SECONDS)]
        if on_cpus():
            choices.append((waits.still_unknown, live, _UNKNOWN_SECONDS))
        for still, processes, seconds in choices:
            if self.waits_long(still, seconds):
                return still() if self.all_idle(processes) else ""
        self.publish_idle(0)
        return ""

    def waits_long(self, still: Callable[[], str], seconds: float) -> bool:
        """Return whether this process does nothing but wait for ``seconds``, and publish it."""
        idle = bool(still()) and is_idle(seconds, lambda: self.over() or not still())
        if idle:
            self.publish_idle(self.idle + 1)
        return idle

    def publish_idle(self, periods: int) -> None:
        if periods != self.idle:
            self.idle = periods
            with contextlib.suppress(Exception):
                self.client.key_value_set(f"{_IDLE}{self.me}", str(periods), allow_overwrite=True)

    def all_idle(self, processes: frozenset[int]) -> bool:
        """Return whether all these processes were idle at the previous check and have been idle since.

        Only the first process asks; it informs the others by ending.
        """
        if processes <= {self.me}:
            return True
        if self.me != min(processes):
            return False
        before, now = self.seen, {process: int(text) for process, text in self.values_of(_IDLE).items()}
        self.seen = now
        return all(0 < before.get(process, 0) < now.get(process, 0) for process in processes - {self.me})

    def values_of(self, folder: str) -> dict[int, str]:
        """Return the published values of a folder by process."""
        with contextlib.suppress(Exception):
            return {int(key.rpartition("/")[2]): value for key, value in self.client.key_value_dir_get(folder)}
        return {}
