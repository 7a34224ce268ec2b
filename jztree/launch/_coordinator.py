"""Exchange texts through JAX's coordinator, which has a key-value store for all processes.

JAX has no public way to this store (jax 0.10.2 and 0.11.2), nor to the number of this process before devices start. So
`coordinator` reads `jax._src.distributed.global_state`, like Orbax: the only private name of JAX in `jztree.launch`. A
socket instead would need an address, a port and a secret in every process.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

_FOLDER = "jztree/calls/"
_POLL_MILLISECONDS = 1000  # between checks for Python's own events, such as Ctrl-C
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_MAX_CALL = 2000  # characters of a call in an error
_numbers: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)


def coordinator() -> Any:
    """Return the state of JAX's distributed runtime: ``client``, ``process_id`` and ``num_processes``.

    Raises:
        RuntimeError: If this version of JAX has no such object.
    """
    try:
        from jax._src.distributed import global_state  # noqa: PLC0415
    except ImportError as error:
        raise RuntimeError(
            "this version of JAX has no jax._src.distributed.global_state, which jztree needs to reach JAX's "
            "coordinator; install a version of JAX that jztree supports."
        ) from error
    return global_state


def gather_texts(name: str, text: str, timeout_seconds: int = 300) -> list[str]:
    """Return the ``text`` of every process, in the order of the processes, without devices and collectives.

    Args:
        name: A new name for each call, the same in all processes.
        text: The text of this process.
        timeout_seconds: The time to wait for the other processes.

    Raises:
        jax.errors.JaxRuntimeError: If not all processes have called it within the time.
    """
    state = coordinator()
    if state.client is None or state.num_processes == 1:
        return [text]
    folder = f"jztree/texts/{name}/"
    state.client.key_value_set(f"{folder}{state.process_id}", text)
    state.client.wait_at_barrier(f"jztree/texts/{name}", timeout_seconds * 1000)
    texts = {int(key.rpartition("/")[2]): value for key, value in state.client.key_value_dir_get(folder)}
    return [texts[process] for process in range(state.num_processes)]


def agree(call: str, processes: Iterable[int]) -> None:
    """Wait until all ``processes`` have reached their next call, and check that it is the same one.

    A difference would cause an endless wait in the first run. The cost is three messages to the coordinator.

    Raises:
        ValueError: On all processes, if calls differ.
    """
    state, members = coordinator(), tuple(sorted(processes))
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
    for key, different_call in client.key_value_dir_get(f"{folder}other/"):
        raise ValueError(
            f"the calls of the processes differ: process {members[0]} calls {first[:_MAX_CALL]}, but process "
            f"{key.rpartition('/')[2]} calls {different_call[:_MAX_CALL]}. All must call the same functions in the "
            "same order, with arrays of the same shapes and types and with the same shared values."
        )


def _value(client: Any, key: str) -> str:
    while True:
        try:
            return str(client.blocking_key_value_get(key, _POLL_MILLISECONDS))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
