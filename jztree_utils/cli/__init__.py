"""The command line: ``jztree fof``, ``knn``, ``tree``, ``convert``, ``plot`` and ``info``.

Exit status: 0 success, 1 unexpected error, 2 bad input or output (one sentence on standard error), 130 interrupted, 141
the reader of the output has closed it, 143 terminated.
"""

# ruff: noqa: PLC0415 - JAX takes a second to import, and --help does not need it
import argparse
import contextlib
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from ._commands.arguments import build_parser, parse
from ._commands.input_files import check_inputs
from ._interrupts import INTERRUPTED, INTERRUPTED_STATUS, before_end, ending_at_once
from ._library_sentence import is_memory_error, library_sentence
from ._report import NORMAL, QUIET, VERBOSE, stage, telling, warn

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: Arguments without the name of the program; None takes the arguments of the process.

    Returns:
        0 for success; see the top of this file for the others.
    """
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    try:
        return _run(argv)
    except SystemExit as end:  # --help
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:  # of one of several processes
        print(INTERRUPTED, file=sys.stderr)
        return INTERRUPTED_STATUS
    except BrokenPipeError:
        _drop_unwritten()
        return 141
    except Exception as error:
        if debug:
            traceback.print_exc()
        status = _print_error(error)
        _drop_unwritten()
        return status


def _drop_unwritten() -> None:
    """Drop output that cannot be printed. Python would retry at exit, complain, and end with another status."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    args = parse(sys.argv[1:] if argv is None else argv)
    if args.version:
        from jztree import __version__

        print(f"jztree {__version__}")
        return 0
    if args.command is None:
        build_parser().print_help()
        return 0
    check_inputs(args)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may have no valid encoding
    with contextlib.ExitStack() as until_end, contextlib.ExitStack() as alone:
        alone.enter_context(ending_at_once())
        until_end.enter_context(telling(_level(args)))
        until_end.enter_context(_warnings_as_lines())
        with contextlib.nullcontext() if args.command == "info" else stage("load JAX"):
            from ..io import remove_unfinished
            from ._commands import dispatch

            before_end.add(remove_unfinished)
            if not dispatch.join_processes():
                nowhere = until_end.enter_context(open(os.devnull, "w"))
                until_end.enter_context(contextlib.redirect_stdout(nowhere))
        if dispatch.are_several():
            alone.close()  # the others wait for this process and must learn how it ends
        dispatch.RUN[args.command](args)
        sys.stdout.flush()
    return 0


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print Python warnings like the command line's warnings, without the line of code."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if issubclass(category, UserWarning):
                warn(" ".join(str(message).split()))
            else:
                before(message, category, *place, **options)

        warnings.showwarning = show
        yield


def _level(args: argparse.Namespace) -> int:
    """Return the level of output."""
    if getattr(args, "quiet", False) or (args.json and args.command != "info"):
        return QUIET
    return VERBOSE if getattr(args, "verbose", False) else NORMAL


def _print_error(error: Exception) -> int:
    """Print an error on the process that must report it, and return the exit status.

    One process prints an error that all processes have. An error of this process alone ends all processes, because the
    others may be waiting for this one.
    """
    sentence, status = _explain(error)
    message = f"jztree: error: {sentence}"
    dispatch = sys.modules.get(f"{__package__}._commands.dispatch")
    if dispatch is None or not dispatch.are_several():
        print(message, file=sys.stderr)
        return status
    # The library shares its run-time errors with all devices before they raise.
    told_by = getattr(error, "told_by", None if library_sentence(str(error)) is None else 0)
    if told_by is None:
        from jztree.launch import abort

        abort(message, status)
    if told_by == dispatch.jax.process_index():
        print(message, file=sys.stderr)
    return status


def _explain(error: Exception) -> tuple[str, int]:
    """Return the message of an error for the user, in one line, and the exit status."""
    text = " ".join(str(getattr(error, "on_command_line", error)).split())
    sentence = library_sentence(text)
    if sentence is not None:
        return sentence[:1].upper() + sentence[1:], 2
    if is_memory_error(error) and not hasattr(error, "on_command_line"):
        reason = text.partition("RESOURCE_EXHAUSTED: ")[2] or text
        words = f" ({reason.rstrip('.')[:200]})" if reason else ""
        return f"There is not enough memory{words}; use a machine with more, or fewer particles.", 2
    if isinstance(error, OSError) and error.strerror:  # a system error
        problem = f"{error.filename} cannot be used" if error.filename else "Reading or writing failed"
        return f"{problem} ({error.strerror}).", 2
    if isinstance(error, (ValueError, OSError, ImportError)) or is_memory_error(error):
        return text if text.endswith(".") else f"{text}.", 2  # errors of other packages may not be sentences
    return f"An unexpected error occurred ({type(error).__name__}: {text[:300]}); run with --debug and report it.", 1
