"""The arguments of the command line, from flags and from a configuration file.

This module does not import JAX, so ``--help`` is quick.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import help_texts
from .configuration_file import flags_of_config, options_of_commands
from .flag_values import real, size, whole
from .header_arguments import add_header_options
from .suggestions import suggest

KINDS = ("halos", "density", "halo", "tree", "mass-function", "sizes", "distances")
MODELS = ("press_schechter", "sheth_tormen", "jenkins", "warren", "tinker")
KERNELS = ("knn", "cubic_spline", "wendland_c2", "wendland_c4", "wendland_c6")
B = 0.2  # the default linking length in mean separations
ATTACH_WITHIN = 6.4  # the default of `jztree.fof`, copied here because that import would load JAX
CATALOGUE_LAYOUTS = ("native", "gadget4", "swift", "soap")
CENTRES = ("potential", "densest", "mass")
# Defaults of options that have code to check whether the user gave them.
DEFAULTS = {
    "attach_within": ATTACH_WITHIN,
    "matter": "all",
    "centre": "potential",
    "snapshot_files": 1,
    "min_bound": 20,
    "candidates": "density",
}
TREE_LAYOUTS = ("gadget4", "sublink")
LINK_WEIGHTS = ("sublink", "lhalotree")
SNAPSHOT_LAYOUTS = ("gadget4", "numpy")
PARQUET = "parquet"  # a table of a catalogue, which cannot be read back


class _Parser(argparse.ArgumentParser):
    """A parser with one-sentence errors, like all other errors."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)
        # Values such as -5,5 or -0.1:0.2 are not options; argparse recognises only plain numbers.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of a call and of its configuration file; flags take precedence.

    ``command`` is None if the user gave none, which prints the help.

    Raises:
        ValueError: If an argument is invalid; the message is a sentence for the user.
        SystemExit: If --help or an argument of that kind is given.
    """
    parser = build_parser()
    args = _parse_known(parser, argv)
    if getattr(args, "config", None) is None:
        return args
    flags = flags_of_config(Path(args.config), args, options_of_commands(parser))
    place = list(argv).index(args.command) + 1
    return _parse_known(parser, [*argv[:place], *flags, *argv[place:]])


def _parse_known(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse ``argv``. Unknown arguments raise an error that points to the help."""
    args, unknown = parser.parse_known_args(argv)
    for name, value in vars(args).items():
        _check_text(name.replace("_", "-"), value)
    if unknown:
        command = " ".join(filter(None, ("jztree", args.command)))
        options = options_of_commands(parser).get(args.command or "", {}).values()
        advice = suggest(unknown[0], [flag for option in options for flag in option.option_strings])
        raise ValueError(
            f"{command} has no option {' '.join(unknown)}; {advice and f'{advice}, and '}see {command} --help."
        )
    return args


def _check_text(name: str, value: Any) -> None:
    """Raise ValueError for text that cannot be a name."""
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and not text.strip() and name != "title":
            raise ValueError(f"{name} is empty; give a name, or leave it out.")
        if isinstance(text, str) and "\0" in text:
            raise ValueError(f"{name} is {text!r}, with a null character; remove this character.")


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = _Parser(
        prog="jztree",
        description=help_texts.DESCRIPTION,
        epilog=help_texts.EPILOG + "\nRun 'jztree COMMAND --help' for options and examples.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    _add_debug(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    _add_fof(commands)
    _add_knn(commands)
    _add_hdbscan(commands)
    _add_xi(commands)
    _add_tree(commands)
    _add_convert(commands)
    _add_plot(commands)
    _add_view(commands)
    _add_verify(commands)
    words = "versions, devices and native libraries in use"
    info = commands.add_parser("info", help=words, description=f"Print {words}.")
    info.add_argument("--json", action="store_true", help="print them as JSON, for scripts")
    _add_debug(info)
    return parser


def _add_debug(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--debug", action="store_true", help="if an error occurs, print the Python traceback")


def _add_fof(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "friends-of-friends groups: a halo catalogue and a picture"
    fof = commands.add_parser("fof", help=words, description=f"Find {words}.", epilog=help_texts.FOF_EPILOG)
    _add_snapshots(fof)
    _add_snapshot_options(fof)
    groups = fof.add_argument_group("groups")
    _add_linking(groups)
    _add_spheres(groups)
    _add_subhaloes(groups)
    output = _add_output(fof, "write the catalogue to this HDF5 file")
    _add_overwrite(output)
    output.add_argument(
        "--layout", choices=CATALOGUE_LAYOUTS, default="native", help="layout of the catalogue (default: native)"
    )
    output.add_argument("--no-ids", action="store_true", help="leave the identifiers of members out of the catalogue")
    _add_copies(output)
    output.add_argument("--plot", metavar="FILE", help="draw the halos (.png, .pdf, .svg); needs matplotlib")
    running = _add_telling(fof)
    running.add_argument(
        "--memory",
        type=size,
        metavar="SIZE",
        help="find the groups piece by piece with this much memory, such as 8GB, and temporary files beside the "
        "catalogue (default: only if the particles do not fit into memory)",
    )


def _add_linking(groups: argparse._ArgumentGroup) -> None:
    groups.add_argument(
        "--b",
        type=real,
        help="linking length in mean separations of the particles. The separation is computed from their mass and "
        f"Omega0 like in Gadget-4, or from their number in the box if these are missing (default: {B})",
    )
    groups.add_argument(
        "--scan-b",
        metavar="FROM:TO[:N]",
        help="print the number of groups at N linking lengths (default: 21), in mean separations, instead of finding a "
        "catalogue; --plot draws it. They follow from one search",
    )
    groups.add_argument("--rlink", type=real, metavar="R", help="linking length in the snapshot's unit of length")
    groups.add_argument(
        "--npart-min",
        type=whole,
        default=20,
        metavar="N",
        help="minimum number of particles of a group in the catalogue (default: 20)",
    )
    groups.add_argument(
        "--attach",
        metavar="TYPES",
        help="particle types that join the group of the nearest particle of --type, such as 0,4,5; 'all' means all "
        "other types",
    )
    groups.add_argument(
        "--attach-within",
        type=real,
        default=DEFAULTS["attach_within"],
        metavar="B",
        help=f"maximum distance to this nearest particle in linking lengths, or inf (default: {ATTACH_WITHIN}, as in "
        "Gadget-4)",
    )


def _add_spheres(groups: argparse._ArgumentGroup) -> None:
    groups.add_argument(
        "--properties",
        action="store_true",
        help="also find masses and radii of spheres of all matter (200c, 500c, 2500c, 200m and virial), maximum "
        "circular velocity, concentration, spin, shape and densest particle",
    )
    groups.add_argument(
        "--overdensity",
        metavar="NAMES",
        help="further spheres, such as 100c,178m: multiples of the critical (c) or the mean density (m); implies "
        "--properties",
    )
    groups.add_argument(
        "--matter",
        default=DEFAULTS["matter"],
        metavar="TYPES",
        help="particle types that spheres include in addition to the types in groups, such as 0,4,5 (default: all)",
    )
    groups.add_argument(
        "--centre",
        choices=CENTRES,
        default=DEFAULTS["centre"],
        help="centre of the spheres: the particle with the lowest potential, the densest particle, or the centre of "
        "mass (default: potential)",
    )


def _add_subhaloes(groups: argparse._ArgumentGroup) -> None:
    groups.add_argument(
        "--subhaloes",
        action="store_true",
        help="also find the bound subhaloes of each group; members are then in the order of their subhaloes and "
        "energies, and the rows of the layout soap are subhaloes",
    )
    groups.add_argument(
        "--candidates",
        choices=("density", "phase-space"),
        default=DEFAULTS["candidates"],
        help="the search for candidates: by density, like SUBFIND, or in phase space, like Rockstar (default: density)",
    )
    groups.add_argument(
        "--softening",
        type=real,
        metavar="R",
        help="softening length of their potential, in the snapshot's unit of length (default: a tenth of the linking "
        "length)",
    )
    groups.add_argument(
        "--min-bound",
        type=whole,
        default=DEFAULTS["min_bound"],
        metavar="N",
        help="minimum number of bound particles of a subhalo (default: 20)",
    )


def _add_copies(output: argparse._ArgumentGroup) -> None:
    """Add the options for copies of the snapshot that match its catalogue."""
    output.add_argument(
        "--snapshot-output",
        metavar="FILE",
        help="also write the whole snapshot to this HDF5 file, with its particles in group order; readers of the "
        "layout gadget4 need this order",
    )
    output.add_argument(
        "--group-ids-output",
        metavar="FILE",
        help="also write the whole snapshot to this HDF5 file, with the number of the group of each particle "
        "(FOFGroupIDs, from 1; with --layout soap also GroupNr_bound, from 0)",
    )
    output.add_argument(
        "--snapshot-files",
        type=whole,
        default=DEFAULTS["snapshot_files"],
        metavar="N",
        help="write each copy of the snapshot in N files, named snapshot_099.0.hdf5 and so on (default: 1)",
    )


def _add_knn(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "the K nearest neighbours of every particle, and densities"
    knn = commands.add_parser("knn", help=words, description=f"Find {words}.", epilog=help_texts.KNN_EPILOG)
    _add_snapshots(knn)
    _add_snapshot_options(knn)
    search = knn.add_argument_group("neighbours")
    search.add_argument(
        "-k",
        type=whole,
        default=8,
        metavar="K",
        help="number of neighbours, including the particle itself (default: 8)",
    )
    search.add_argument("--density", action="store_true", help="estimate the density around every particle")
    search.add_argument("--lists", action="store_true", help="write lists of neighbours in addition to densities")
    search.add_argument(
        "--kernel", choices=KERNELS, help="kernel of the density estimate (default: knn); implies --density"
    )
    _add_overwrite(_add_output(knn, "write distances and indices, or densities, to this HDF5 file"))
    _add_telling(knn)


def _add_hdbscan(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "clusters that are stable over many linking lengths (HDBSCAN*)"
    parser = commands.add_parser("hdbscan", help=words, description=f"Find {words}.", epilog=help_texts.HDBSCAN_EPILOG)
    _add_snapshots(parser)
    _add_snapshot_options(parser)
    clusters = parser.add_argument_group("clusters")
    clusters.add_argument(
        "--min-cluster-size",
        type=whole,
        default=20,
        metavar="N",
        help="minimum number of particles of a cluster (default: 20)",
    )
    clusters.add_argument(
        "--min-samples",
        type=whole,
        metavar="K",
        help="number of nearest particles, including itself, that determines the density at a particle (default: N)",
    )
    clusters.add_argument(
        "--epsilon",
        type=real,
        default=0.0,
        metavar="R",
        help="merge clusters that split at lengths below R, in the snapshot's unit of length (default: 0)",
    )
    clusters.add_argument(
        "--method",
        choices=("eom", "leaf"),
        default="eom",
        help="select the most stable clusters (eom), or the smallest ones (leaf; default: eom)",
    )
    clusters.add_argument("--single", action="store_true", help="allow all particles to form one cluster")
    output = _add_output(parser, "write clusters, probabilities and outlier scores to this HDF5 file")
    _add_overwrite(output)
    output.add_argument("--plot", metavar="FILE", help="draw the clusters (.png, .pdf, .svg); needs matplotlib")
    _add_telling(parser)


def _add_xi(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "the two-point correlation function of the particles of a periodic box"
    xi = commands.add_parser("xi", help=words, description=f"Measure {words}.", epilog=help_texts.XI_EPILOG)
    _add_snapshots(xi)
    _add_snapshot_options(xi)
    bins = xi.add_argument_group("bins")
    bins.add_argument(
        "--bins",
        metavar="FROM,TO,N",
        help="start of the first bin, end of the last bin, and number of bins, which have equal widths in the "
        "logarithm (default: 20 bins from a tenth of the mean separation to a tenth of the box)",
    )
    bins.add_argument("--linear", action="store_true", help="use bins of equal width")
    bins.add_argument(
        "--projected",
        type=real,
        metavar="PI_MAX",
        help="measure the projected function wp(rp) instead, for pairs whose distance along the line of sight is at "
        "most PI_MAX",
    )
    bins.add_argument("--los", choices=("x", "y", "z"), help="line of sight of --projected (default: z)")
    output = _add_output(xi, "write the function and the numbers of pairs to this HDF5 file")
    _add_overwrite(output)
    output.add_argument("--plot", metavar="FILE", help="draw the function (.png, .pdf, .svg); needs matplotlib")
    _add_telling(xi)


def _add_convert(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "catalogues and snapshots into other formats"
    convert = commands.add_parser(
        "convert", help=words, description=f"Convert {words}.", epilog=help_texts.CONVERT_EPILOG
    )
    convert.add_argument("input", metavar="FILE", nargs="?", help="a catalogue or a snapshot")
    _add_snapshot_options(convert)
    output = _add_output(convert, "the file to write")
    layouts = tuple(dict.fromkeys((*CATALOGUE_LAYOUTS, PARQUET, *SNAPSHOT_LAYOUTS)))
    output.add_argument(
        "--layout",
        choices=layouts,
        help="layout of the output (default: for catalogues native, or parquet if FILE is .parquet; for snapshots "
        "gadget4, or numpy if FILE is .npz)",
    )
    _add_telling(convert)


def _add_tree(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "merger trees of the subhaloes in a sequence of snapshots or catalogues"
    tree = commands.add_parser("tree", help=words, description=f"Build {words}.", epilog=help_texts.TREE_EPILOG)
    tree.add_argument(
        "input", metavar="INPUT", nargs="*", help="snapshots, catalogues with subhaloes, or their folders"
    )
    _add_snapshot_options(tree)
    links = tree.add_argument_group("links")
    links.add_argument(
        "--weights",
        choices=LINK_WEIGHTS,
        default=LINK_WEIGHTS[0],
        help="weights of common particles: 1/rank (sublink), or rank^(-2/3) in the most bound half "
        "(lhalotree; default: sublink)",
    )
    links.add_argument("--no-skip", action="store_true", help="do not link subhaloes that are lost for one output")
    output = _add_output(tree, "write the trees to this HDF5 file")
    output.add_argument(
        "--layout", choices=TREE_LAYOUTS, default=TREE_LAYOUTS[0], help="layout of the trees (default: gadget4)"
    )
    _add_telling(tree)


def _add_plot(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "pictures of snapshots, catalogues, merger trees and neighbours"
    plot = commands.add_parser("plot", help=words, description=f"Draw {words}.", epilog=help_texts.PLOT_EPILOG)
    plot.add_argument("kind", metavar="KIND", choices=KINDS, nargs="?", help="the picture to draw")
    plot.add_argument("input", metavar="FILE", nargs="*", help="files to read")
    _add_snapshot_options(plot, "masses; for mass-function the column to draw, such as m200m")
    plot.add_argument("--catalogue", metavar="FILE", help="groups to mark in a picture of a snapshot")
    plot.add_argument("--title", default="", help="title above the picture")
    density = plot.add_argument_group("density and halo")
    density.add_argument(
        "--slab", metavar="Z", help="show only particles between two coordinates along z, such as 10,15"
    )
    density.add_argument(
        "--smooth",
        type=whole,
        default=0,
        metavar="K",
        help="spread each particle over half the distance to its K-th neighbour, such as 16",
    )
    density.add_argument("--surface-density", action="store_true", help="let colours show mass per area, with units")
    density.add_argument(
        "--halo",
        type=whole,
        default=0,
        metavar="ROW",
        help="row of a halo in --catalogue; for tree the rank by mass among the subhaloes of the last output "
        "(default: 0)",
    )
    curve = plot.add_argument_group("analytic mass function")
    curve.add_argument(
        "--model", choices=MODELS, help="model (default: warren; for spheres, such as --mass m200m, tinker)"
    )
    planck = "(default: Planck 2018, {})"
    curve.add_argument(
        "--sigma8", type=real, metavar="S", help=f"linear density contrast in 8 Mpc/h {planck.format(0.8111)}"
    )
    curve.add_argument("--n-s", type=real, metavar="N", help=f"spectral index {planck.format(0.9649)}")
    _add_output(plot, "the picture (.png, .pdf, .svg, ...)")
    _add_telling(plot)


def _add_view(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "particles and haloes in 3D, in an HTML file for a browser"
    view = commands.add_parser("view", help=words, description=f"Show {words}.", epilog=help_texts.VIEW_EPILOG)
    view.add_argument("input", metavar="SNAPSHOT", nargs="*", help='a snapshot, or the word "sample"')
    _add_snapshot_options(view)
    view.add_argument("--catalogue", metavar="FILE", help="haloes of the snapshot, from jztree fof")
    for flag, number, rows in (
        ("particles", 30_000, "randomly chosen particles"),
        ("halos", 300, "haloes, the largest first"),
    ):
        view.add_argument(
            f"--{flag}", type=whole, default=number, metavar="N", help=f"show at most N {rows} (default: {number})"
        )
    view.add_argument("--title", default="", help="title above the view")
    _add_output(view, "the page (.html)")
    _add_telling(view)


def _add_verify(commands: "argparse._SubParsersAction[_Parser]") -> None:
    words = "a catalogue or neighbour lists by brute force, without the kernels of the library"
    verify = commands.add_parser(
        "verify", help=f"check {words}", description=f"Check {words}.", epilog=help_texts.VERIFY_EPILOG
    )
    verify.add_argument("input", metavar="FILE", nargs="*", help="the result, and the snapshot that it was made from")
    _add_snapshot_options(verify)
    group = verify.add_argument_group("sample")
    group.add_argument(
        "--samples", type=whole, metavar="N", help="check N rows of each result (default: as many as take some seconds)"
    )
    _add_telling(verify)


def _add_snapshots(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "snapshot", metavar="SNAPSHOT", nargs="*", help='files or folders of snapshots, or the word "sample"'
    )


def _add_snapshot_options(parser: argparse.ArgumentParser, masses: str = "masses") -> None:
    """Add options for reading a snapshot, with the help text for the masses."""
    group = parser.add_argument_group("snapshot")
    group.add_argument(
        "--type",
        type=whole,
        default=1,
        metavar="T",
        help="particle type: 0 gas, 1 dark matter, 4 stars, ... (default: 1)",
    )
    group.add_argument(
        "--format", choices=("gadget", "swift", "hdf5", "numpy"), help="format of the snapshot, if it is not recognised"
    )
    for name, description in (("pos", "positions"), ("vel", "velocities"), ("mass", masses), ("id", "identifiers")):
        group.add_argument(f"--{name}", metavar="DATASET", help=f"dataset or array of the {description}")
    group.add_argument(
        "--boxsize", metavar="L", help="periodic length, or one per dimension, such as 50,50,100; 0 means open"
    )
    add_header_options(parser, real)


def _add_output(parser: argparse.ArgumentParser, words: str) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="FILE", help=words)
    return group


def _add_overwrite(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--overwrite",
        action="store_true",
        help="write outputs again even if they exist; outputs without {n} or {name} in their name are always written",
    )


def _add_telling(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("running")
    group.add_argument("--config", metavar="FILE", help="read options from this TOML file; flags take precedence")
    group.add_argument(
        "--dry-run", action="store_true", help="only print the planned steps, with estimates of time and memory"
    )
    group.add_argument("--json", action="store_true", help="print only a summary as JSON, for scripts")
    group.add_argument("-q", "--quiet", action="store_true", help="print only errors")
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print the machine, the contents of the snapshot, rows sent between devices, and peak memory",
    )
    _add_debug(group)
    return group
