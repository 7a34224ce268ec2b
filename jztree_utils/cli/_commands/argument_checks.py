"""Checks of the arguments of a call that need no file, before JAX is imported, which takes seconds."""

import math
import os
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence

from ... import _constants
from .arguments import DEFAULTS, KINDS, B
from .flag_values import check_at_least, check_not_negative, real, whole
from .header_arguments import header_entries
from .output_names import check_names_of_outputs

_STEPS, _MAX_STEPS = 21, 10_000  # linking lengths of --scan-b
_MAX_BINS = 10_000
_MISTAKEN = 10.0  # mean separations; certainly a length in another unit, or a typing error
_SPHERE = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([cm])")
_SPHERES = ("200c", "500c", "2500c", "200m", "vir")
# Options of jztree fof that need groups at one linking length, and their values if they are not given.
_NOT_FOR_SCANS = {
    **dict.fromkeys(("b", "rlink", "memory", "attach", "overdensity", "output", "snapshot_output", "group_ids_output")),
    **dict.fromkeys(("properties", "no_ids", "subhaloes"), False),
    "softening": None,
    **DEFAULTS,
    "layout": "native",
}


def check_arguments(args: Namespace) -> None:
    """Raise ValueError if an argument of the command is missing or invalid, and set defaults that depend on others."""
    if hasattr(args, "snapshot") and not args.snapshot:
        raise ValueError(f"No snapshot was given; give a file or a folder, see jztree {args.command} --help.")
    if args.command in _CHECKS:
        _CHECKS[args.command](args)
    check_names_of_outputs(args)
    if hasattr(args, "boxsize"):
        box_lengths(args.boxsize)
        header_entries(args, real)
        check_at_least("--type", args.type, 0)


def _check_fof(args: Namespace) -> None:
    if args.scan_b is not None:
        scan_range(args.scan_b)
        for name, default in _NOT_FOR_SCANS.items():
            if getattr(args, name) != default:
                raise ValueError(
                    f"--{name.replace('_', '-')} has no effect with --scan-b, which finds no catalogue; leave one out."
                )
    if args.b is not None and args.rlink is not None:
        raise ValueError("Both --b and --rlink were given, but each sets the linking length; give only one.")
    if args.memory is not None and args.memory <= (minimum := _constants.PROGRAM_BYTES):
        raise ValueError(
            f"--memory is {args.memory / 1e6:g} MB, but Python and the compiled searches alone need "
            f"{minimum / 1e6:.0f} MB; give more."
        )
    check_not_negative("--b", args.b)
    check_not_negative("--rlink", args.rlink)
    if args.b is not None and args.b >= _MISTAKEN:
        raise ValueError(
            f"--b is {args.b:g}: a linking length of {args.b:g} mean separations joins all particles; a usual "
            f"value is {B}. Give lengths in the unit of the positions with --rlink."
        )
    check_at_least("--npart-min", args.npart_min, 1)
    check_at_least("--snapshot-files", args.snapshot_files, 1)
    _check_subhaloes(args)
    if args.attach_within != math.inf:
        check_not_negative("--attach-within", args.attach_within)
    if args.type in (particle_types("--attach", args.attach) or ()):
        raise ValueError(f"--attach has type {args.type}, which is already the grouped type (--type); leave it out.")
    particle_types("--matter", args.matter)
    sphere_names(args.overdensity)
    _check_of_use(args)


def _check_subhaloes(args: Namespace) -> None:
    if not args.subhaloes:
        for name in ("softening", "min_bound", "candidates"):
            if getattr(args, name) != DEFAULTS.get(name):
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} has no effect without --subhaloes; add --subhaloes, or remove --{flag}.")
    check_not_negative("--softening", args.softening)
    check_at_least("--min-bound", args.min_bound, 1)


def with_properties(args: Namespace) -> bool:
    """Return whether the user requested properties, directly or by an option that implies them."""
    return bool(args.properties or args.overdensity)


def _check_of_use(args: Namespace) -> None:
    """Raise ValueError for an option that has no effect without another, missing option."""
    needed_options = {"attach_within": "--attach"} if args.attach is None else {}
    if args.snapshot_output is None and args.group_ids_output is None:
        needed_options["snapshot_files"] = "--snapshot-output or --group-ids-output"
    if not with_properties(args):
        needed_options |= dict.fromkeys(("matter", "centre"), "--properties or --overdensity")
    for name, needed in needed_options.items():
        if getattr(args, name) != DEFAULTS[name]:
            flag = f"--{name.replace('_', '-')} {getattr(args, name)}"
            raise ValueError(f"{flag} has no effect without {needed}; add {needed}, or remove it.")


def _check_knn(args: Namespace) -> None:
    check_at_least("-k", args.k, 1)
    if args.kernel is not None:
        args.density = True
    args.lists = args.lists or not args.density
    if args.density and args.kernel in (None, "knn") and args.k < 3:
        raise ValueError(
            f"-k is {args.k}; with --density it must be at least 3: the particle itself and two neighbours."
        )


def _check_hdbscan(args: Namespace) -> None:
    check_at_least("--min-cluster-size", args.min_cluster_size, 2)
    if args.min_samples is None:
        args.min_samples = args.min_cluster_size
    check_at_least("--min-samples", args.min_samples, 1)
    check_not_negative("--epsilon", args.epsilon)


def _check_xi(args: Namespace) -> None:
    range_of_bins(args)
    if args.los is not None and args.projected is None:
        raise ValueError(f"--los {args.los} has no effect without --projected; add --projected, or remove --los.")
    if args.projected is not None and not 0 < args.projected < math.inf:
        raise ValueError(f"--projected is {args.projected:g}; it must be a positive length.")


def _check_convert(args: Namespace) -> None:
    if args.input is None or args.output is None:
        raise ValueError("convert needs an input file, and -o with the output file; see jztree convert --help.")


def _check_tree(args: Namespace) -> None:
    if not args.input or args.output is None:
        raise ValueError("tree needs snapshots or catalogues, and -o with the output file; see jztree tree --help.")
    check_several(args.input)


def check_several(outputs: Sequence[str | os.PathLike[str]]) -> None:
    """Raise ValueError if only one output was given for trees."""
    if len(outputs) == 1:
        raise ValueError(f"tree links the subhaloes of several outputs, but only {outputs[0]} was given; give more.")


def _check_plot(args: Namespace) -> None:
    if args.kind is None or not args.input:
        raise ValueError(f"plot needs a kind ({', '.join(KINDS)}) and a file; see jztree plot --help.")
    if len(args.input) > 1 and args.kind != "mass-function":
        raise ValueError(f"plot {args.kind} draws one file, but {len(args.input)} were given; give one.")
    if args.kind in ("halos", "halo") and args.catalogue is None:
        raise ValueError(
            f"plot {args.kind} needs the groups of the snapshot; give their catalogue, from jztree fof, with "
            "--catalogue."
        )
    if args.kind == "halo" and (args.slab is not None or args.smooth):
        raise ValueError(
            "plot halo does not have --slab and --smooth, because it always shows a smoothed cube; leave them out."
        )
    slab(args.slab)
    if args.smooth < 0 or args.smooth == 1:
        raise ValueError(f"--smooth is {args.smooth}; give 0, or at least 2 neighbours.")
    check_at_least("--halo", args.halo, 0)
    if args.sigma8 is not None and not 0 < args.sigma8 < math.inf:
        raise ValueError(f"--sigma8 is {args.sigma8:g}; it must be a positive number.")
    if args.n_s is not None and not math.isfinite(args.n_s):
        raise ValueError(f"--n-s is {args.n_s:g}; it must be finite.")


def _check_view(args: Namespace) -> None:
    if len(args.input) != 1:
        number = f"{len(args.input)} were" if args.input else "none was"
        raise ValueError(f"view shows one snapshot, but {number} given; give one, see jztree view --help.")
    if args.output is None:
        raise ValueError("view needs the name of the HTML file to write; give it with -o.")
    check_at_least("--particles", args.particles, 0)
    check_at_least("--halos", args.halos, 0)


def _check_verify(args: Namespace) -> None:
    if len(args.input) != 2:
        raise ValueError(
            f"verify needs a result and its snapshot, but {len(args.input)} files were given; see jztree verify --help."
        )
    if args.samples is not None:
        check_at_least("--samples", args.samples, 1)


_CHECKS: dict[str, Callable[[Namespace], None]] = {
    "fof": _check_fof,
    "knn": _check_knn,
    "hdbscan": _check_hdbscan,
    "xi": _check_xi,
    "convert": _check_convert,
    "plot": _check_plot,
    "tree": _check_tree,
    "view": _check_view,
    "verify": _check_verify,
}


# Values of several words. Each function raises ValueError if its value is invalid.


def scan_range(text: str) -> tuple[float, float, int]:
    """Return the first and the last linking length of --scan-b, and their number."""
    words = [word.strip() for word in text.split(":")]
    try:
        low, high = real(words[0]), real(words[1])
        count = whole(words[2]) if len(words) > 2 else _STEPS
    except (ArgumentTypeError, IndexError):
        words, low, high, count = [], 0.0, 0.0, 0
    if len(words) not in (2, 3) or not 0 <= low < high < math.inf or not 2 <= count <= _MAX_STEPS:
        raise ValueError(
            f"--scan-b is {text}; it must be the first and the last linking length in mean separations, and perhaps "
            f"the number of lengths (from 2 to {_MAX_STEPS}), such as 0.1:0.3 or 0.1:0.3:41."
        )
    return low, high, count


def range_of_bins(args: Namespace) -> tuple[float, float, int] | None:
    """Return the start, the end and the number of --bins, or None without them."""
    if args.bins is None:
        return None
    words = [word.strip() for word in args.bins.split(",")]
    try:
        low, high, count = real(words[0]), real(words[1]), whole(words[2])
    except (ArgumentTypeError, IndexError):
        words, low, high, count = [], 0.0, 0.0, 0
    lowest = 0 if args.linear else math.nextafter(0, 1)
    if len(words) != 3 or not lowest <= low < high < math.inf or not 1 <= count <= _MAX_BINS:
        above = "0 or more" if args.linear else "above 0"
        raise ValueError(
            f"--bins is {args.bins}; it must be the start ({above}), the end and the number (from 1 to {_MAX_BINS}) "
            "of the bins, such as 0.1,20,25."
        )
    return low, high, count


def particle_types(flag: str, words: str | None) -> tuple[int, ...] | None:
    """Return the types that a flag lists; None means all others."""
    if words is None:
        return ()
    if words == "all":
        return None
    try:
        return tuple(dict.fromkeys(whole(word.strip()) for word in words.split(",")))
    except ArgumentTypeError:
        raise ValueError(f"{flag} is {words}; it must be particle types, such as 0,4,5, or 'all'.") from None


def sphere_names(text: str | None) -> tuple[str, ...]:
    """Return the names of the default spheres and of the spheres in ``--overdensity``, such as ``100c,178m``."""
    names = []
    for word in [] if text is None else text.split(","):
        name = _SPHERE.fullmatch(word.strip())
        if word.strip() != "vir" and not (name and 0 < float(name[1]) < math.inf):
            raise ValueError(
                f"--overdensity is {text}; it must be names such as 100c,178m,vir: a multiple of the critical (c) or "
                "the mean density (m), or the virial overdensity."
            )
        names.append(f"{float(name[1]):g}{name[2]}" if name else "vir")
    return tuple(dict.fromkeys((*_SPHERES, *names)))


def box_lengths(text: str | None) -> float | tuple[float, ...] | None:
    """Return the length of --boxsize, or one per dimension; None without it."""
    if text is None:
        return None
    try:
        lengths = tuple(real(word.strip()) for word in text.split(","))
    except ArgumentTypeError:
        lengths = ()
    if not lengths or not all(math.isfinite(length) and length >= 0 for length in lengths):
        raise ValueError(
            f"--boxsize is {text}; it must be a length, or one per dimension, such as 50,50,100; 0 means open."
        )
    return lengths[0] if len(lengths) == 1 else lengths


def slab(words: str | None) -> tuple[float, float] | None:
    """Return the two numbers of --slab, or None without it."""
    if words is None:
        return None
    try:
        low, high = (real(word.strip()) for word in words.split(","))
    except (ArgumentTypeError, ValueError):
        raise ValueError(f"--slab is {words}; it must be two numbers, such as 10,15.") from None
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        raise ValueError(f"--slab is {words}; it must be two different finite numbers, such as 10,15.")
    return low, high
