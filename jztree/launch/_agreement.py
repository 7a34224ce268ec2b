"""Check that all processes make the same call, before its first run; a difference would be an endless wait."""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

_FOLDER = "jztree/calls/"
_POLL_MILLISECONDS = 1000  # between checks for Python's own events, such as Ctrl-C
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MOST = 2000  # characters of a call in an error
_numbers: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


def agree(call: str, processes: Iterable[int], state: Any) -> None:
    """Wait until all ``processes`` have reached their next call, and check that it is the same one.

    The cost is three messages to the coordinator.

    Args:
        call: The call in words that are the same on all processes.
        processes: Numbers of the processes.
        state: State of JAX's distributed runtime; without it, this function does nothing.

    Raises:
        ValueError: On all processes, if calls differ.
    """
    members = tuple(sorted(processes))
    if state.client is None or len(members) < 2:
        return
    client, me = state.client, int(state.process_id)
    # Addresses of objects differ between processes.
    call = _ADDRESS.sub("", call)
    folder = f"{_FOLDER}{','.join(map(str, members)) if len(members) < state.num_processes else 'all'}/"
    folder += f"{next(_numbers[members])}/"
    if me == members[0]:
        client.key_value_set(f"{folder}call", call)
    first = _value(client, f"{folder}call")
    if call != first:
        client.key_value_set(f"{folder}other/{me}", call)
    if client.key_value_increment(f"{folder}count", 1) == len(members):
        client.key_value_set(f"{folder}complete", "")
    _value(client, f"{folder}complete")
    for key, other in client.key_value_dir_get(f"{folder}other/"):
        raise ValueError(
            f"the calls of the processes differ: process {members[0]} calls {first[:_MOST]}, but process "
            f"{key.rpartition('/')[2]} calls {other[:_MOST]}. All must call the same functions in the same order, with "
            "arrays of the same shapes and types and with the same shared values."
        )


def _value(client: Any, key: str) -> str:
    while True:
        try:
            return str(client.blocking_key_value_get(key, _POLL_MILLISECONDS))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
