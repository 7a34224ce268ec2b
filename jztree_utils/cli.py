"""The command line: ``jztree fof``, ``jztree knn`` and ``jztree info``.

Exit status: 0 all is well, 1 something unexpected, 2 bad input or output (one sentence on standard error), 130
interrupted, 141 the reader of the output has gone.
"""

# ruff: noqa: PLC0415 - JAX takes a second to import, and --help does not need it
import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

_MARKER = "jztree: "  # what the library's own run-time messages begin with
_DESCRIPTION = """\
Exact friends-of-friends groups and k nearest neighbours of the particles of a simulation snapshot."""
_EPILOG = """\
SNAPSHOT is in the HDF5 format of Gadget-4 or AREPO: one file, any file of a snapshot in several, or the folder of one.
The word "sample" stands for a small cosmological snapshot that comes with jztree (48^3 particles).
All devices are used, under srun and mpirun those of all processes; results do not depend on their number.
"""
_FOF_EPILOG = f"""\
Two particles are linked if they are at most the linking length apart, across the periodic boundary too. A group is
what is connected by links.

{_EPILOG}
examples:
  jztree fof sample --plot halos.png
  jztree fof snapdir_099 -o catalogue.hdf5
  jztree fof snapshot_099.0.hdf5 --rlink 0.15 --npart-min 32 --type 4 -o stars.hdf5

The catalogue (HDF5) holds, for each group, number of particles, mass, centre, velocity, radii and velocity dispersion,
and the identifiers of its members; the largest group comes first. Every dataset has its unit as attributes.
Without masses or velocities in the snapshot, what needs them is left out.
"""
_KNN_EPILOG = f"""\
The first neighbour of a particle is the particle itself, at distance 0, and counts as one of the K.

{_EPILOG}
examples:
  jztree knn sample -k 8
  jztree knn snapdir_099 -k 32 --density -o neighbours.hdf5

--density estimates the density as (m_2 + ... + m_(K-1)) / V(r_K): the mass of the neighbours, without the particle
itself and without the last one, over the volume of the ball that reaches to the last one (Casertano & Hut 1985). It
counts particles if the snapshot has no masses.
The output (HDF5) holds distances and indices (rows of the snapshot, from 0), (N, K) each, and the densities.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, like all others."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = _Parser(
        prog="jztree",
        description=_DESCRIPTION,
        epilog=_EPILOG + "\nRun 'jztree COMMAND --help' for options and examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    _add_debug(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    _add_fof(commands)
    _add_knn(commands)
    words = "versions, devices and native libraries in use"
    _add_debug(commands.add_parser("info", help=words, description=f"Print {words}."))
    return parser


def _add_debug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debug", action="store_true", help="show the Python traceback of an error")


def _add_fof(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "friends-of-friends groups: a halo catalogue and a picture"
    fof = commands.add_parser(
        "fof",
        help=words,
        description=f"Find {words}.",
        epilog=_FOF_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_snapshot(fof)
    length = fof.add_mutually_exclusive_group()
    length.add_argument(
        "--b",
        type=float,
        default=0.2,
        help="linking length in units of the mean separation of the particles, BoxSize / N^(1/3) (default: 0.2)",
    )
    length.add_argument("--rlink", type=float, metavar="R", help="linking length in the snapshot's unit of length")
    fof.add_argument(
        "--npart-min",
        type=int,
        default=20,
        metavar="N",
        help="fewest particles of a group in the catalogue (default: 20)",
    )
    fof.add_argument("-o", "--output", metavar="FILE", help="write the catalogue to this HDF5 file")
    fof.add_argument("--plot", metavar="FILE", help="draw the halos (.png, .pdf, .svg); needs matplotlib")
    _add_debug(fof)


def _add_knn(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "the K nearest neighbours of every particle, and densities"
    knn = commands.add_parser(
        "knn",
        help=words,
        description=f"Find {words}.",
        epilog=_KNN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_snapshot(knn)
    knn.add_argument(
        "-k", type=int, default=8, metavar="K", help="neighbours, the particle itself included (default: 8)"
    )
    knn.add_argument("--density", action="store_true", help="estimate the density around every particle")
    knn.add_argument("-o", "--output", metavar="FILE", help="write distances, indices and densities to this HDF5 file")
    _add_debug(knn)


def _add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("snapshot", metavar="SNAPSHOT", help='file or folder of the snapshot, or the word "sample"')
    parser.add_argument(
        "--type",
        type=int,
        default=1,
        metavar="T",
        help="particle type: 0 gas, 1 dark matter, 4 stars, ... (default: 1)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    argv: arguments without the name of the program; None takes those of the process.
    """
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    try:
        return _run(argv)
    except SystemExit as end:  # --help
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        print("jztree: interrupted; no output was left half-written.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Python would complain once more when it flushes the output at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _report(error)


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.version:
        from jztree import __version__

        print(f"jztree {__version__}")
        return 0
    if args.command is None:
        parser.print_help()
        return 0
    from .report import stage

    with contextlib.ExitStack() as until_end:
        with contextlib.nullcontext() if args.command == "info" else stage("load JAX"):
            from . import commands

            if not commands.join_processes():
                nowhere = until_end.enter_context(open(os.devnull, "w"))
                until_end.enter_context(contextlib.redirect_stdout(nowhere))
        {"fof": commands.run_fof, "knn": commands.run_knn, "info": commands.run_info}[args.command](args)
        sys.stdout.flush()
    return 0


def _report(error: Exception) -> int:
    """Print an error on the process that is to tell it, and return the exit status.

    An error that all processes have is printed by one of them. An error of this process alone ends all: the others may
    be waiting for this one.
    """
    sentence, status = _explain(error)
    message = f"jztree: error: {sentence}"
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized() or jax.process_count() == 1:
        print(message, file=sys.stderr)
        return status
    # What the library finds out while it runs, it tells to all devices before they raise.
    told_by = getattr(error, "told_by", 0 if _MARKER in str(error) else None)
    if told_by is None:
        from jztree.launch import abort

        abort(message, status)
    if told_by == jax.process_index():
        print(message, file=sys.stderr)
    return status


def _explain(error: Exception) -> tuple[str, int]:
    """What to tell the user of an error, in one line, and the exit status."""
    text = " ".join(str(error).split())
    if _MARKER in text:
        sentence = text.partition(_MARKER)[2]
        return sentence[:1].upper() + sentence[1:], 2
    if isinstance(error, (ValueError, OSError, ImportError)):
        return text, 2
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text:
        return "There is not enough memory; take a machine with more, or a particle type with fewer particles.", 2
    return f"Something unexpected happened ({type(error).__name__}: {text[:300]}); run with --debug and report it.", 1


if __name__ == "__main__":
    sys.exit(main())
