"""Statistics of the library: numbers of rows sent and of communication rounds.

``with jztree.stats.statistics() as s:`` counts while the block runs. Mapped functions are recompiled inside the block,
because counting is compiled in. Outside the block, nothing is counted, so it has no cost.
"""

import contextlib
import functools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

__all__ = ["Statistics", "record", "statistics"]

_lock = threading.Lock()
_active: list["Statistics"] = []


@dataclass
class Statistics:
    """Counts by name, summed over the devices of this process and over calls.

    Attributes:
        counts: The number for each name. ``rows.sort``: rows that a distributed sort sent to another rank.
            ``rows.ghosts``: copies of particles sent to other ranks. ``rows.boxes``: boxes sent to ranks that may have
            ghosts for them. ``rows.results``: rows of results sent back to the ranks of their queries. ``rows.groups``:
            rows sent to bring particles into group order. ``rounds.union_find``: rounds of joining groups across ranks,
            counted once per device. ``rounds.spanning_tree``: rounds of joining components of a spanning tree over
            ranks. ``rounds.spanning_tree_ghosts``: how often this search brought ghosts. ``rows.edges``: edges sent.
            ``rows.densities`` and ``rows.peaks``: densities that are sorted over ranks, and neighbours and numbers of
            peaks that are sent to their ranks.
    """

    counts: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> int:
        return self.counts.get(name, 0)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {count}" for name, count in sorted(self.counts.items()))

    def print_info(self) -> None:
        """Print the counts, one per line."""
        print(self)

    def reduce_multi_host(self) -> "Statistics":
        """Return the counts summed over all processes.

        All processes must call this. The counts of this object stay unchanged.
        """
        text = np.frombuffer(json.dumps(self.counts).encode(), np.uint8)
        lengths = multihost_utils.process_allgather(np.asarray([text.size], np.int32)).reshape(-1)
        padded = np.zeros(int(lengths.max()), np.uint8)
        padded[: text.size] = text
        rows = multihost_utils.process_allgather(padded).reshape(len(lengths), -1)
        total: Counter[str] = Counter()
        for row, length in zip(rows, lengths, strict=True):
            total.update(json.loads(bytes(row[: int(length)])))
        return Statistics(dict(total))

    def print_suggestions(self, cfg: Any = None) -> None:
        """Print suggestions for buffer sizes in a configuration.

        The list is always empty, because buffers size themselves.

        Args:
            cfg: A configuration of `jztree.config`, or None. It is ignored.
        """
        del cfg
        print(
            "jztree: nothing to suggest. Buffers need no options, because jztree enlarges buffers that are too small."
        )


def recording() -> bool:
    """Return whether counting is to be compiled in."""
    return bool(_active)


@contextlib.contextmanager
def statistics(ctx: Statistics | None = None) -> Iterator[Statistics]:
    """Count events inside the block, on all devices of this process.

    Args:
        ctx: Counts to continue. None starts new ones.

    Yields:
        The counts. They are complete when the block ends.

    Raises:
        ValueError: If an enclosing block already counts into ``ctx``.
    """
    s = Statistics() if ctx is None else ctx
    if any(active is s for active in _active):
        raise ValueError(
            "an enclosing block already counts into these statistics; leave out ctx, or pass another Statistics()."
        )
    _active.append(s)
    try:
        yield s
        jax.effects_barrier()
    finally:
        # Compare by identity: equal counts may belong to different objects.
        del _active[next(i for i, active in enumerate(_active) if active is s)]


def record(name: str, amount: Any) -> None:
    """Add to the count of a name if statistics are active.

    Args:
        name: Name of the count.
        amount: int32 scalar of this device.
    """
    if recording():
        jax.debug.callback(functools.partial(_add, name), amount)


def _add(name: str, amount: Any) -> None:
    # Devices call this from their own threads.
    with _lock:
        for s in _active:
            s.counts[name] = s.counts.get(name, 0) + int(amount)
