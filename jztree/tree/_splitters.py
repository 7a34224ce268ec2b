"""Cut the z-order into one range per rank.

A splitter is a position in the z-order that has the required number of rows of all ranks before it. All splitters are
found together, from the most significant bits downwards. Splitters that agree in all known bits share a cell of the
z-order. The next bits divide a cell into parts. Every rank counts its own rows up to the end of each part; the sums
over the ranks determine the part of each splitter, and all ranks continue there.

A sum has space for a fixed number of parts per splitter. At first all splitters share one cell, which gets all parts.
Splitters that have the right number of rows need no further parts and leave theirs to the others. So few sums suffice,
regardless of how the rows are spread over the ranks: 6 sums of 16 parts per splitter for 1e5 uniform particles on each
of 2,048 ranks. The worst case needs all bits of a position, four at a time.

Equal points have no exact splitter; they are distributed in the order of the ranks.

Exact splitters: P. Siebert & F. Wolf (2003), "A scalable parallel sorting algorithm using exact splitting"; they sum
    over pivots taken from the rows. Sums over parts: E. Solomonik & L. V. Kale (2010), "Highly scalable parallel
    sorting".
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..jax_ext import Exact

_Keys = tuple[jax.Array, jax.Array, Exact]

# Number of parts counted at a time, per rank and at least; both are powers of two. Fewer parts need more sums, and more
# parts make larger sums: on 2,048 ranks 16 make 131 kB.
_PARTS_A_RANK, _FEWEST_PARTS = 16, 4096


class Search(NamedTuple):
    """The state of the search for splitters.

    depth: int32, number of known bits of each splitter. places: ``(s, words)`` uint32, these bits; the others are 0.
        left: ``(s, 2)`` int32, number of rows of all ranks in the splitter's cell that precede it, as high and low; see
        `comm.Wide`. rows: ``(types, s, 2)`` int32, the first row of this rank in the cell, and the number of its rows
        there.
    """

    depth: jax.Array
    places: jax.Array
    left: jax.Array
    rows: jax.Array


def traffics_of(
    positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys, nsamp: int | None
) -> list[comm.Traffic]:
    """Return the traffic of each type that gives all ranks the same number of rows of all types together.

    positions: of each type, in z-order. keys: the domain of the Morton keys. nsamp: balance a sample of this size per
        rank instead; equal points are then not cut apart.
    """
    nums = [kernels.as_num(num) for num in nums]
    cuts = _exact_cuts(positions, nums, keys) if nsamp is None else _sampled_cuts(positions, nums, keys, nsamp)
    traffics: list[comm.Traffic] = []
    for cut, num in zip(cuts, nums, strict=True):
        sent = jnp.diff(jnp.concatenate([jnp.zeros(1, jnp.int32), cut, num[None]]))
        traffics.append(comm.traffic_of(comm.after(sent, traffics[-1].most) if traffics else sent))
    return traffics


def _exact_cuts(positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys) -> Sequence[jax.Array]:
    """Return the rows at which each type is cut for the ranks, ``(r - 1,)`` each."""
    rank, ndev, _ = comm.get_rank_info()
    found = find(positions, nums, keys)
    # Rank i cuts at the i-th splitter, for which it needs the rows of all ranks there. The last rank has no cut.
    there = comm.swap(jnp.pad(jnp.moveaxis(found.rows, 0, 1), [(0, 1), (0, 0), (0, 0)]))
    left = jnp.pad(found.left, [(0, 1), (0, 0)])[rank]
    cuts = comm.swap(_cut_ties(there[..., 0], there[..., 1], comm.Wide(left[0], left[1])))
    return [cuts[: ndev - 1, kind] for kind in range(len(nums))]


def _sampled_cuts(positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys, nsamp: int) -> Sequence[jax.Array]:
    """Return `_exact_cuts` of a sample of the rows."""
    # With the same stride on all ranks, every sample represents the same number of rows.
    stride = jnp.maximum(1, -(-comm.all_max(sum(nums)) // nsamp))
    rows = [jnp.minimum(jnp.arange(nsamp, dtype=jnp.int32) * stride, pos.shape[0] - 1) for pos in positions]
    samples = [kernels.gather_rows(pos, row) for pos, row in zip(positions, rows, strict=True)]
    places = find(samples, [-(-num // stride) for num in nums], keys).places
    return [kernels.key_positions(pos, num, *keys, places) for pos, num in zip(positions, nums, strict=True)]


def find(positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys) -> Search:
    """Return the splitters between the shares of the ranks, and the rows at them that are to be cut apart."""
    number, dims = comm.num_ranks() - 1, positions[0].shape[1]
    words, word_bits = kernels.splitter_words(dims), dims * (64 // dims)
    most = (number + 1) * sum(pos.shape[0] for pos in positions)
    room = max(_FEWEST_PARTS, _PARTS_A_RANK << number.bit_length())

    def narrow(search: Search) -> Search:
        groups = _groups(search)
        step = _next_bits(search.depth, groups[-1], room, word_bits)
        own = [
            kernels.count_parts(pos, *keys, search.places, rows, groups, step, room)
            for pos, rows in zip(positions, search.rows, strict=True)
        ]
        sums = jnp.stack(comm.wide_sum(sum(own), most), axis=-1)
        return Search(search.depth + step[2], *kernels.choose_parts(sums, jnp.stack(own), *search[1:], groups, step))

    def unfinished(search: Search) -> jax.Array:
        return jnp.any(search.left != 0) & (search.depth < words // 2 * word_bits)

    whole = [jnp.broadcast_to(jnp.stack([jnp.zeros_like(num), num]), (number, 2)) for num in nums]
    # A value of -1 in left makes the first step determine the number of rows.
    left = jnp.full((number, 2), -1, jnp.int32)
    at_first = Search(jnp.int32(0), jnp.zeros((number, words), jnp.uint32), left, jnp.stack(whole))
    search = jax.tree.map(comm.vary, at_first)
    return jax.lax.while_loop(unfinished, narrow, search) if number else search


def _groups(search: Search) -> jax.Array:
    """Return ``(s,)`` int32, cell numbers from 1 on for unfinished splitters; those of finished ones are arbitrary."""
    is_open = jnp.any(search.left != 0, axis=1)
    # In one cell, the splitters at its beginning are found first.
    like_last = is_open[:-1] & jnp.all(search.places[1:] == search.places[:-1], axis=1)
    return jnp.cumsum(is_open & ~jnp.pad(like_last, (1, 0)), dtype=jnp.int32)


def _next_bits(depth: jax.Array, groups: jax.Array, room: int, word_bits: int) -> jax.Array:
    """Return the step for `kernels.count_parts`, with as many bits as the parts allow."""
    known = depth % word_bits
    bits = jnp.minimum(31 - jax.lax.clz(room // jnp.maximum(groups, 1)), word_bits - known)
    return jnp.stack([depth // word_bits, word_bits - known - bits, bits])


def _cut_ties(first: jax.Array, equal: jax.Array, left: comm.Wide) -> jax.Array:
    """Return the cut of each rank's rows of each type, ``(r, types)``, so that ``left`` of all equal rows are below.

    first, equal: ``(r, types)``, the first row at the splitter, and the number of rows there. They are cut in the order
        of types, then ranks.
    """
    by_type = equal.T.reshape(-1)
    # Sums over ranks may exceed 32 bits, so sum the halves separately.
    before_high = jnp.cumsum(by_type >> 16, dtype=jnp.int32) - (by_type >> 16)
    before_low = jnp.cumsum(by_type & 0xFFFF, dtype=jnp.int32) - (by_type & 0xFFFF)
    high, low = left.high - before_high, left.low - before_low
    high, low = high + (low >> 16), low & 0xFFFF
    here = jnp.where(high >= 2**14, 2**30, jnp.where(high < 0, 0, jnp.clip(high, 0, 2**14) * 65536 + low))
    # With more than 2**30 particles at one point, a rank would be cut too early; later ranks take the rest.
    taken = jnp.clip(here, 0, by_type)
    return first + taken.reshape(equal.shape[::-1]).T
