"""The sequence of snapshots of a call, and the outputs to write for each."""

import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from ... import io, plot
from .._particles.particles import Particles
from .._report import say, take_seconds
from .argument_checks import check_arguments
from .earlier_outputs import are_there
from .output_names import OUTPUTS, check_different
from .snapshots import read_options, snapshot_path


@dataclass(frozen=True)
class Run:
    """One snapshot and its outputs; None for outputs that were not requested."""

    path: Path
    output: str | None = None
    plot: str | None = None
    snapshot_output: str | None = None
    group_ids_output: str | None = None
    snapshot_files: int = 1

    @property
    def files(self) -> list[str]:
        """The HDF5 outputs, which store the options that they were made with."""
        return [name for name in (self.output, *self.copies) if name is not None]

    @property
    def copies(self) -> list[str]:
        """The copies of the snapshot, with each of their files."""
        names = [name for name in (self.snapshot_output, self.group_ids_output) if name is not None]
        return [str(file) for name in names for file in io.names_of_files(name, self.snapshot_files)]

    @property
    def all(self) -> list[str]:
        """The names of all outputs."""
        return [*self.files, *([] if self.plot is None else [self.plot])]

    def summary(self, part: Particles, *outputs: str, units: Sequence[str] = ("length",)) -> dict[str, Any]:
        """Return the common part of summaries for scripts.

        The entry ``outside_box`` has the number of particles outside the box and their maximum distance from it, or
        None if all are inside.
        """
        outside = part.outside
        return {
            "snapshot": str(self.path),
            "description": part.snapshot.description,
            **{name: getattr(self, name) for name in outputs},
            "particles": part.num,
            "boxsize": part.header.boxsize,
            "outside_box": None if outside is None else {"particles": outside.particles, "excess": outside.excess},
            "units": {kind: io.unit_name(part.header, kind) for kind in units},
            "seconds": take_seconds(),
        }


def prepare_runs(args: Namespace, mesh: Mesh) -> list[Run]:
    """Check the arguments. Return the runs to do, without runs whose outputs already exist; raise on all processes."""
    with io.failing_together(mesh):
        check_arguments(args)
        if getattr(args, "plot", None) is not None:
            plot.check_picture(args.plot)
        return _plan_runs(args)


def _plan_runs(args: Namespace) -> list[Run]:
    """Return the runs to do, without runs whose outputs already exist.

    Raises:
        SnapshotError: If a snapshot is missing or unusable.
        OutputError: If outputs are identical, cannot be written, or exist and were made with other options.
        ValueError: If an argument is invalid.
    """
    options = read_options(args)
    templates: dict[str, str | None] = {name: getattr(args, name, None) for name in OUTPUTS}
    paths = list(_different(args.snapshot, options))
    runs = []
    for path in paths:
        filled = {name: _fill(template, path, len(paths)) for name, template in templates.items()}
        runs.append(Run(path, **filled, snapshot_files=getattr(args, "snapshot_files", 1)))
    check_different([name for run in runs for name in run.all])
    todo = [run for run in runs if not are_there(args, run.path, options, run.files, run.plot)]
    inputs = tuple(file for path in paths for file in io.find_sources(path, options))
    for run in todo:
        for name in run.all:
            io.check_output(name, apart_from=inputs)
        if run.copies:
            io.check_copied(io.find_parts(run.path, options), options)
    return todo


def announce(run: Run, todo: Sequence[Run]) -> None:
    """Print the snapshot that the following output belongs to, if there are several."""
    if len(todo) > 1:
        say(f"\n{run.path}")


def _different(names: Sequence[str], options: io.ReadOptions) -> Iterator[Path]:
    """Yield the snapshots without repetition: several files of one snapshot count once."""
    known: set[Path] = set()
    for name in names:
        path = snapshot_path(name)
        first = io.find_parts(path, options)[0].resolve()
        if first not in known:
            known.add(first)
            yield path


def _fill(template: str | None, path: Path, several: int) -> str | None:
    """Return the name of an output, derived from the name of its snapshot."""
    if template is None:
        return None
    filled = re.sub(
        r"\{n\}|\{name\}", lambda m: _number(path, template) if m[0] == "{n}" else io.base_name(path), template
    )
    if several > 1 and filled == template:
        raise ValueError(
            f"The output {template} is a single name for {several} snapshots; add {{n}} for the number, or {{name}} "
            "for the name, of each snapshot."
        )
    return filled


def _number(path: Path, template: str) -> str:
    """Return the digits at the end of the name of a snapshot."""
    digits = io.number_in_name(path)
    if not digits and "{n}" in template:
        raise ValueError(f"The name of {path} has no number for {{n}}; use {{name}} in {template}.")
    return digits
