"""Links between successive outputs, read one after the other."""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import numpy as np

import jztree as jz
from jztree.links import Descendants, SubhaloMembers, Weights, skip_output

# Sizes are rounded up to these multiples of a power of two, so that few programs are compiled for many outputs.
_STEPS = np.asarray([1.0, 1.25, 1.5, 1.75])


class OutputMembers(NamedTuple):
    """The particles of the subhaloes of one output, and the number of subhaloes."""

    members: SubhaloMembers
    num_subhaloes: int


def link_outputs(
    outputs: Iterable[OutputMembers], *, weights: Weights = "sublink", skip: bool = True
) -> list[Descendants]:
    """Find the descendants of the subhaloes of each output; see `jztree.descendants` and `jztree.links.skip_output`.

    Args:
        outputs: The members of each output, as NumPy arrays, in the order of time. At most three outputs are in memory
            if a generator yields them.
        weights: See `jztree.descendants`.
        skip: Whether links may skip an output.

    Returns:
        The links of each output, as NumPy arrays. The last output has none.

    Raises:
        ValueError: If members are invalid, or identifiers repeat.

    Examples:
        >>> from jztree_utils import trees
        >>> subhaloes = [np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0]), np.array([0, 0, 1, 1])]
        >>> parts = [jz.links.SubhaloMembers(np.arange(4), subhalo, np.arange(4.0)) for subhalo in subhaloes]
        >>> links = trees.link_outputs([trees.OutputMembers(part, part.subhalo.max() + 1) for part in parts])
        >>> [(link.subhalo.tolist(), link.skips.tolist()) for link in links]
        [([0, 1], [False, True]), ([0], [False]), ([-1, -1], [False, False])]
    """
    links: list[Descendants] = []
    skipping: list[Descendants] = []  # the links of each output to the output after the next one
    recent: list[OutputMembers] = []
    numbers: list[int] = []
    for output in outputs:
        padded = _padded(output, len(numbers))
        numbers.append(padded.num_subhaloes)
        for place, earlier in enumerate(recent):
            is_next = place == len(recent) - 1
            try:
                (links if is_next else skipping).append(_links(earlier, padded, weights))
            except jax.errors.JaxRuntimeError as error:
                sentence = str(error).partition("jztree: ")[2]
                if not sentence:
                    raise
                places = len(numbers) - 1 - len(recent) + place, len(numbers) - 1
                raise ValueError(f"part is output {places[0]} and later is output {places[1]}: {sentence}") from None
        recent = [*recent[-1:], padded] if skip else [padded]
    if recent:
        none = np.full(_rounded(numbers[-1]), -1, np.int32)
        links.append(Descendants(none, np.zeros(len(none), np.float32), np.zeros(len(none), bool)))
    skipped_links = [
        jax.device_get(skip_output.jit(link, after, skipped))
        for link, after, skipped in zip(links, links[1:], skipping, strict=False)
    ]
    return [
        Descendants(*(column[:number] for column in link))
        for link, number in zip([*skipped_links, *links[len(skipped_links) :]], numbers, strict=True)
    ]


def _padded(output: OutputMembers, place: int) -> OutputMembers:
    """Return an output whose arrays have one of few sizes."""
    members, n = output.members, len(output.members.subhalo)
    num = n if members.num is None else int(members.num)
    last = np.max(members.subhalo[:num], initial=-1)
    if last >= output.num_subhaloes:
        raise ValueError(
            f"A particle of output {place} is in subhalo {last}, but num_subhaloes is {output.num_subhaloes}; give the "
            "number of subhaloes of the output."
        )

    def pad(column: np.ndarray) -> np.ndarray:
        rows = np.zeros((_rounded(n), *np.shape(column)[1:]), np.asarray(column).dtype)
        rows[:n] = column
        return rows

    energy = None if members.energy is None else pad(np.asarray(members.energy))
    columns = pad(np.asarray(members.id)), pad(np.asarray(members.subhalo)), energy
    return OutputMembers(SubhaloMembers(*columns, np.asarray(num, np.int32)), int(output.num_subhaloes))


def _rounded(size: int) -> int:
    """Return the smallest of few sizes that is not below ``size``."""
    power = 2.0 ** np.floor(np.log2(max(size, 16)))
    steps = np.append(_STEPS, 2.0) * power
    return int(steps[np.searchsorted(steps, size)])


def _links(earlier: OutputMembers, later: OutputMembers, weights: Weights) -> Descendants:
    """Return the links between padded outputs, with more rows than subhaloes."""
    later_members = SubhaloMembers(later.members.id, later.members.subhalo, num=later.members.num)
    number = _rounded(earlier.num_subhaloes)
    links: Descendants = jax.device_get(jz.descendants.jit(earlier.members, later_members, number, weights=weights))
    return links
