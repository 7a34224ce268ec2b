"""What a call of the command line is to do: its snapshots, one after the other, and the outputs of each."""

import dataclasses
import math
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jax.sharding import Mesh

from .. import ics, io
from ..arguments import real
from ..compute import Particles, Source, check_box, open_types, read_particles
from ..details import tell_snapshot
from ..report import VERBOSE, number, say, stage
from .finished import is_finished

SAMPLE = "sample"  # the word that stands for the snapshot that comes with the package
_PICTURES = (".png", ".pdf", ".svg")
_FOREIGN = (*_PICTURES, ".npy", ".npz", ".txt", ".csv", ".json", ".toml", ".py")
_PART = re.compile(r"\.\d+$")


@dataclass(frozen=True)
class Run:
    """One snapshot and its outputs, None where there is none."""

    path: Path
    output: str | None = None
    plot: str | None = None


def plan_runs(args: Namespace) -> list[Run]:
    """The runs that are to be done, outputs that are there already left out.

    Raises, before any long work, SnapshotError, OutputError or ValueError if a snapshot is missing, outputs are the
    same, cannot be written, or are there already and were made with other options.
    """
    if not args.snapshot:
        raise ValueError(f"No snapshot was given; see jztree {args.command} --help.")
    options = read_options(args)
    if args.output is not None:
        check_suffix(args.output)
    paths = list(_different(args.snapshot, options))
    templates = {name: getattr(args, name, None) for name in ("output", "plot")}
    runs = []
    for path in paths:
        filled = {name: _fill(template, path, len(paths)) for name, template in templates.items()}
        runs.append(Run(path, **filled))
    _check_different([name for run in runs for name in (run.output, run.plot) if name is not None])
    todo = [run for run in runs if not is_finished(args, run, options)]
    inputs = tuple(file for path in paths for file in io.find_sources(path, options))
    for run in todo:
        for name in (run.output, run.plot):
            if name is not None:
                io.check_output(name, apart_from=inputs)
    return todo


def announce(run: Run, todo: Sequence[Run]) -> None:
    """Tell which snapshot what follows is about, if there are several."""
    if len(todo) > 1:
        say(f"\n{run.path}")


def check_suffix(output: str) -> None:
    """Raise OutputError if an output, which is HDF5, has a name that says that it is something else."""
    suffix = Path(output).suffix.lower()
    if suffix in _FOREIGN:
        picture = "; pictures are drawn with --plot, or jztree plot" if suffix in _PICTURES else ""
        raise io.OutputError(f"The output {output} would be an HDF5 file; give it a name in .hdf5{picture}.")


def snapshot_path(name: str) -> Path:
    """The path of a snapshot that was given by a path or by the word for the sample."""
    return ics.SAMPLE_3D if name == SAMPLE else Path(name)


def read_options(args: Namespace) -> io.ReadOptions:
    """How snapshots are to be read. Raises ValueError if a box size is no length."""
    names = {name: getattr(args, name) for name in ("format", "pos", "vel", "mass", "id")}
    return io.ReadOptions(**names, boxsize=None if args.boxsize is None else _lengths(args.boxsize))


def _lengths(text: str) -> float | tuple[float, ...]:
    try:
        lengths = tuple(real(word.strip()) for word in text.split(","))
    except ArgumentTypeError:
        lengths = ()
    if not lengths or not all(math.isfinite(length) and length >= 0 for length in lengths):
        raise ValueError(f"--boxsize is {text}; it must be a length, or one a dimension as in 50,50,100, 0 where open.")
    return lengths[0] if len(lengths) == 1 else lengths


def _different(names: Sequence[str], options: io.ReadOptions) -> Iterator[Path]:
    """The snapshots without repetition: names of several files of one snapshot mean that one."""
    known: set[Path] = set()
    for name in names:
        path = snapshot_path(name)
        first = io.find_parts(path, options)[0].resolve()
        if first not in known:
            known.add(first)
            yield path


def _fill(template: str | None, path: Path, several: int) -> str | None:
    """The name of an output, from that of its snapshot."""
    if template is None:
        return None
    check_placeholders(template, ("n", "name"))
    filled = re.sub(r"\{n\}|\{name\}", lambda m: _number(path, template) if m[0] == "{n}" else _base(path), template)
    if several > 1 and filled == template:
        raise ValueError(
            f"The output {template} is one for {several} snapshots; put {{n}} or {{name}} into its name, for the "
            "number or the name of each."
        )
    return filled


def check_placeholders(output: str, known: Sequence[str] = ()) -> None:
    """Raise ValueError if the name of an output has a word in braces that stands for nothing."""
    unknown = [word for word in re.findall(r"\{([^{}]*)\}", output) if word not in known]
    if unknown:
        held = "there are {n}, the number of a snapshot, and {name}, its name" if known else "there are none here"
        raise ValueError(f"The output {output} has the placeholder {{{unknown[0]}}}, which is not known; {held}.")


def _base(path: Path) -> str:
    """The name of a snapshot without suffix and part number."""
    return _PART.sub("", path.stem if path.suffix else path.name)


def _number(path: Path, template: str) -> str:
    """The digits at the end of the name of a snapshot."""
    found = re.search(r"(\d+)\D*$", _base(path))
    if found is None and "{n}" in template:
        raise ValueError(f"The name of {path} has no number to put in place of {{n}}; use {{name}} in {template}.")
    return found[1] if found else ""


def _check_different(outputs: list[str]) -> None:
    places = [Path(output).resolve() for output in outputs]
    for place, output in zip(places, outputs, strict=True):
        if places.count(place) > 1:
            raise io.OutputError(f"Two outputs have the same name, {output}; give them different names.")


def check_not_negative(option: str, value: float | None) -> None:
    """Raise ValueError, in words, for a number that is negative or not finite."""
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{option} is {value:g}; it must be a number of at least 0.")


def check_at_least(option: str, value: int, least: int) -> None:
    """Raise ValueError, in words, for a number that is too small."""
    if value < least:
        raise ValueError(f"{option} is {value}; it must be at least {least}.")


def box_in_words(header: io.SnapshotHeader) -> str:
    """The box for people, such as ``50 x 50 x 100``."""
    if not header.boxsize:
        return "none (open)"
    lengths = header.boxsize if isinstance(header.boxsize, tuple) else (header.boxsize,)
    return " x ".join(number(float(length)) for length in lengths)


def source_of(path: Path, args: Namespace, mesh: Mesh, attach: tuple[int, ...] | None = ()) -> Source:
    """The particles that the options of a call are about. Raises ValueError, on all processes, for a negative type."""
    with io.failing_together(mesh):
        check_at_least("--type", args.type, 0)
        return Source(path, args.type, attach, read_options(args))


def open_checked(source: Source, layout: str | None) -> list[io.Snapshot]:
    """The snapshot as each of its types sees it, the one that is grouped first; only headers are read.

    layout: that a catalogue of it will be written in, None if none will. Raises ValueError if it cannot, and like
    `io.open_snapshot`.
    """
    snapshots = open_types(source)
    for one in snapshots:
        one.header = complete_header(source.path, one.header)
    if layout is not None:
        (ndim,) = snapshots[0].layout("pos")[1]
        io.check_layout(layout, snapshots[0].header, ndim, source.ptype)
    return snapshots


def complete_header(path: Path, header: io.SnapshotHeader) -> io.SnapshotHeader:
    """The header with the units of the sample, which its file does not tell."""
    return dataclasses.replace(header, **ics.SAMPLE_3D_UNITS) if path == ics.SAMPLE_3D else header


def read(source: Source, optional: tuple[str, ...], mesh: Mesh, layout: str | None = None) -> Particles:
    """The particles, with what the snapshot was found to be printed. layout: as in `open_checked`."""
    with io.failing_together(mesh), stage("open the snapshot", level=VERBOSE):
        snapshots = open_checked(source, layout)
        tell_snapshot(snapshots)
    with stage("read the snapshot") as told:
        part = read_particles(snapshots, optional, mesh)
        told.particles = part.num
        told.detail = part.snapshot.description
    corners = part.corners()
    with io.failing_together(mesh):
        check_box(corners, part.header)
    return part
