"""Handle host callbacks that raise on one device while others wait for that one.

A device whose callback raises (`jax.debug.callback`, `jax.pure_callback`, `jax.experimental.io_callback`) leaves the
computation. If the others are in a collective, Python does not receive the error, because it waits for all devices: on
CPUs, XLA aborts a single process after a minute, and several processes wait for ever. If no device waits, JAX raises
the error as usual, and this module does nothing.
"""

import functools
import logging
import re
import sys
import threading
import traceback
from typing import Any

import jax

from ._peers import current, print_at_once, summary_of
from ._waiting import Waits, is_idle

# Loggers and message of JAX's report of a failed host callback.
_LOGGERS = ("jax._src.callback", "jax._src.debugging")
_FAILED = re.compile(r"jax\.\w+(\.\w+)? failed")
# A computation with a failed callback is stuck if all threads only wait for this time; the second value is for
# accelerators.
_SEEN_SECONDS, _UNSEEN_SECONDS = 3.0, 30.0


def watch_callbacks() -> None:
    """Detect host callbacks that raise while other devices wait for theirs. May be called again."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not hasattr(logger.exception, "__wrapped__"):
            # Not a handler or a filter: users who silence logging would silence these too.
            logger.exception = _noting(logger.exception)  # type: ignore[method-assign]


def _noting(report: Any) -> Any:
    """Wrap JAX's report function to monitor the computation of the failed callback."""

    @functools.wraps(report)
    def noted(message: Any, *args: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        if error is not None and _FAILED.fullmatch(str(message)):
            threading.Thread(
                target=_report_if_stuck, args=(error, Waits()), name="jztree callbacks", daemon=True
            ).start()
        report(message, *args, **options)

    return noted


def _report_if_stuck(error: BaseException, waits: Waits) -> None:
    """End all processes, or report the waiting call, if the computation of a failed callback cannot end.

    Args:
        error: The error of the callback.
        waits: The computation at the time of the error. Work that begins later, for example after the error was caught,
            is a different computation.
    """
    patience = _SEEN_SECONDS if jax.default_backend() == "cpu" else _UNSEEN_SECONDS
    while waits.still() and not is_idle(patience, lambda: not waits.still()):
        pass
    waiting = waits.still()
    if not waiting:
        return
    text = "".join(traceback.format_exception(error))
    report = f"a host callback raised this error, and other devices wait for its device ({waiting}):\n{text}"
    peers = current()
    if peers is None:
        print_at_once(f"jztree: {report}This process continues to wait; end it with Ctrl-C or a signal.")
    else:
        peers.end(f"jztree: {peers.name} ends, and with it all others: {report}", summary_of(error), 1)
