"""Checks how JAX runs here: ``python -m jztree_utils.check_cluster``, alone or with srun or mpirun in front.

Process 0 prints the processes, hosts, devices, CPUs and versions. The check then tests the results and the speed of the
collectives that jztree uses, and reports well-known traps, each with a remedy. The exit code is 1 if a result is wrong
or if the processes do not find each other.
"""

import argparse
import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from jztree import launch

from ._collectives import check_collectives
from ._facts import Facts, describe, facts_after_start, facts_before_start, gather_facts
from ._traps import describe_traps, traps

__all__ = ["main"]

DEFAULT_MEGABYTES = (0.001, 1.0, 16.0)
# A start takes seconds. After this time, report possible obstacles; `launch.initialize` itself waits for 65 s.
PATIENCE_SECONDS = 20


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m jztree_utils.check_cluster", description=(__doc__ or "").strip())
    parser.add_argument(
        "--megabytes",
        type=float,
        nargs="+",
        default=list(DEFAULT_MEGABYTES),
        help="sizes of the messages of each device (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout", type=float, default=300, help="stop after this number of seconds (default: %(default)s)"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks and return the exit code."""
    options = parse(arguments)
    with _alarm(options.timeout, lambda: _give_up(options.timeout)):
        before = facts_before_start()
        try:
            with _alarm(PATIENCE_SECONDS, lambda: _print_waiting(before)):
                launch.initialize()
                everyone = gather_facts(facts_after_start(before))
        except (ValueError, RuntimeError) as error:
            _print_lines(describe_traps([traps(os.environ, before, [before])]), f"The processes did not start: {error}")
            return 1
        facts = everyone[jax.process_index()]
        report = _print_lines if facts.process_id == 0 else _print_nothing
        report(describe(everyone), "")
        texts = launch.gather_texts("check_cluster/traps", json.dumps(traps(os.environ, facts, everyone)))
        result = describe_traps([json.loads(text) for text in texts])
        report(result or "None of the well-known traps.", "")
        num_wrong = check_collectives(options.megabytes, report)
    report("", "All results are right." if num_wrong == 0 else f"{num_wrong} elements are WRONG.")
    return 0 if num_wrong == 0 else 1


@contextlib.contextmanager
def _alarm(seconds: float, action: Callable[[], Any]) -> Iterator[None]:
    """Call ``action`` if the block takes longer than ``seconds``, in a thread because the main one may be waiting."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _print_waiting(facts: Facts) -> None:
    """Print the possible reasons for missing peers that this process can detect."""
    _print_lines(
        f"A process on {facts.host} has waited for its peers for {PATIENCE_SECONDS} s; possible causes:",
        describe_traps([traps(os.environ, facts, [facts])])
        or "none of the well-known traps; check that the hosts allow connections to each other",
    )


def _give_up(seconds: float) -> None:
    """End this process, which is waiting in a collective."""
    _print_lines(
        f"After {seconds:g} s a collective is still running on {socket.gethostname()}: set "
        "NCCL_DEBUG=INFO in the environment to see the attempts of NCCL; gloo needs host names that resolve to "
        "reachable addresses."
    )
    os._exit(1)


def _print_lines(*lines: str) -> None:
    """Print lines in one write, so that lines of different processes do not mix."""
    print(*(line for line in lines), sep="\n", flush=True)


def _print_nothing(*_: str) -> None:
    """Print nothing, in all processes but the first."""
