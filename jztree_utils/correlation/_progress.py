"""Progress reports of pair counts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax

from jztree.kernels import particles_done

from ..progress import polled, waiting


@contextmanager
def counting(task: str, work: int, particles: int, advance: Callable[[int], None], *, quiet: bool) -> Iterator[None]:
    """Report the progress of a block that counts pairs.

    On a CPU, the kernel stores the number of finished particles. On a GPU, only the time is known.

    Args:
        what: The task, in words.
        work: The amount of work.
        particles: The number of particles that the kernel will count.
        advance: The function that `jztree_utils.progress.progress` yields; it receives ``work`` in total.
        quiet: Show nothing.
    """
    if quiet:
        yield
        return
    before, largest, finished = particles_done(), max(particles, 1), False

    def done() -> int:
        return work if finished else work * min(particles_done() - before, largest) // largest

    if jax.default_backend() == "cpu":
        with polled(done, advance):
            yield
            finished = True
    else:
        with waiting(task):
            yield
        advance(work)
