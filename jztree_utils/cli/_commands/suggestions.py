"""Advice on options that a command does not know."""

import difflib
from collections.abc import Collection

_ALIKE = 0.75  # of two names, as measured by difflib
# Names in other programs and papers, and the options here.
_B, _RLINK = "--b (in mean separations)", "--rlink (in the unit of the positions)"
_LINKING, _FEWEST = (_B, _RLINK), ("--npart-min",)
_MEANT: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("linking-length", "linking", "link", "ll", "linklength", "link-length", "r-link", "radius"), _LINKING
    ),
    **dict.fromkeys(("linking-parameter", "b-link", "blink"), (_B,)),
    **dict.fromkeys(("min-members", "min-particles", "min-size", "nmin", "min-group-size", "min-npart"), _FEWEST),
    **dict.fromkeys(("box", "lbox", "period"), ("--boxsize",)),
    **dict.fromkeys(("neighbours", "neighbors", "n-neighbors", "num-neighbours", "num-neighbors"), ("-k",)),
    **dict.fromkeys(("ptype", "parttype", "particle-type"), ("--type",)),
    **dict.fromkeys(("out", "outfile"), ("--output",)),
}


def suggest(option: str, known: Collection[str]) -> str:
    """Return advice on an unknown option, such as "use --npart-min"; empty without a similar option.

    Args:
        option: The given text, with a value or without.
        known: The options of the command.
    """
    name = option.partition("=")[0].lower().replace("_", "-")
    meant = _MEANT.get(name.lstrip("-"))
    if meant is None:
        held = difflib.get_close_matches(name, sorted(known), 1, _ALIKE)
    else:
        held = [meaning for meaning in meant if meaning.split()[0] in known]
    return f"use {' or '.join(held)}" if held else ""
