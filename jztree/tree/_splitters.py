"""Where the z-order is cut into ranges, one a rank.

A splitter is a place in the z-order, with as many rows of all ranks before it as should be. All splitters are found
together, bits from the top. Those that agree in all bits known so far are in one cell of the z-order. The next bits
divide a cell into parts; every rank counts its own rows up to the end of each part; the sums over the ranks say in
which part each splitter is, and all ranks go on there. A sum has room for some parts a splitter. At first all splitters
are in one cell, which has all the parts; those that have found the right number of rows need no more, and leave their
parts to the others. So few sums suffice, and how the rows are spread over the ranks does not matter: 6 sums of 16 parts
a splitter for 1e5 uniform particles on each of 2,048 ranks. In the worst case all bits that a place has are needed, by
fours.

Where points are equal, there is no right place, and they are dealt out in the order of the ranks.

Exact splitters: P. Siebert & F. Wolf (2003), "A scalable parallel sorting algorithm using exact splitting"; their sums
are of pivots taken from the rows. Sums over parts: E. Solomonik & L. V. Kale (2010), "Highly scalable parallel
sorting".
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..jax_ext import Exact

_Keys = tuple[jax.Array, jax.Array, Exact]

# Parts that are counted at a time, for each rank and at least; both are powers of two. With fewer there are more sums,
# with more they are larger: on 2,048 ranks 16 make 131 kB.
_PARTS_A_RANK, _FEWEST_PARTS = 16, 4096


class Search(NamedTuple):
    """What is known of splitters.

    depth: int32, how many bits of each. places: ``(s, words)`` uint32, these bits; the others are 0. left: ``(s, 2)``
    int32, how many rows of all ranks in the splitter's cell are before it, as high and low; see `comm.Wide`. rows:
    ``(types, s, 2)`` int32, the first row of this rank in the cell, and how many there are.
    """

    depth: jax.Array
    places: jax.Array
    left: jax.Array
    rows: jax.Array


def traffics_of(
    positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys, nsamp: int | None
) -> list[comm.Traffic]:
    """The traffic of rows of each type by which all ranks get the same number of rows, of all types together.

    positions: of each type, in z-order. keys: where Morton keys are taken. nsamp: get the same number of rows of a
    sample of so many a rank instead; equal points are then not cut apart.
    """
    nums = [kernels.as_num(num) for num in nums]
    cuts = _exact_cuts(positions, nums, keys) if nsamp is None else _sampled_cuts(positions, nums, keys, nsamp)
    traffics: list[comm.Traffic] = []
    for cut, num in zip(cuts, nums, strict=True):
        sent = jnp.diff(jnp.concatenate([jnp.zeros(1, jnp.int32), cut, num[None]]))
        traffics.append(comm.traffic_of(comm.after(sent, traffics[-1].most) if traffics else sent))
    return traffics


def _exact_cuts(positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys) -> Sequence[jax.Array]:
    """Where the rows of each type are cut for the ranks, ``(r - 1,)`` each."""
    rank, ndev, _ = comm.get_rank_info()
    found = find(positions, nums, keys)
    # Rank i cuts at the i-th splitter, for which it needs what all ranks have there. The last rank has none to cut at.
    there = comm.swap(jnp.pad(jnp.moveaxis(found.rows, 0, 1), [(0, 1), (0, 0), (0, 0)]))
    left = jnp.pad(found.left, [(0, 1), (0, 0)])[rank]
    cuts = comm.swap(_cut_ties(there[..., 0], there[..., 1], comm.Wide(left[0], left[1])))
    return [cuts[: ndev - 1, kind] for kind in range(len(nums))]


def _sampled_cuts(positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys, nsamp: int) -> Sequence[jax.Array]:
    """As `_exact_cuts`, by the rows of a sample."""
    # The same stride on all ranks makes every sample stand for as many rows.
    stride = jnp.maximum(1, -(-comm.all_max(sum(nums)) // nsamp))
    rows = [jnp.minimum(jnp.arange(nsamp, dtype=jnp.int32) * stride, pos.shape[0] - 1) for pos in positions]
    samples = [kernels.gather_rows(pos, row) for pos, row in zip(positions, rows, strict=True)]
    places = find(samples, [-(-num // stride) for num in nums], keys).places
    return [kernels.key_positions(pos, num, *keys, places) for pos, num in zip(positions, nums, strict=True)]


def find(positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys) -> Search:
    """The splitters between the shares of the ranks, and the rows at them, where these are to be cut apart."""
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
    # That -1 is left has the first step find out how many rows there are.
    left = jnp.full((number, 2), -1, jnp.int32)
    at_first = Search(jnp.int32(0), jnp.zeros((number, words), jnp.uint32), left, jnp.stack(whole))
    search = jax.tree.map(comm.vary, at_first)
    return jax.lax.while_loop(unfinished, narrow, search) if number else search


def _groups(search: Search) -> jax.Array:
    """``(s,)`` int32: numbers, from 1 on, of the cells of the splitters that are not found yet; others have any."""
    is_open = jnp.any(search.left != 0, axis=1)
    # Of splitters in one cell, those are found first that are at its beginning.
    like_last = is_open[:-1] & jnp.all(search.places[1:] == search.places[:-1], axis=1)
    return jnp.cumsum(is_open & ~jnp.pad(like_last, (1, 0)), dtype=jnp.int32)


def _next_bits(depth: jax.Array, groups: jax.Array, room: int, word_bits: int) -> jax.Array:
    """The step for `kernels.count_parts`, with as many bits as there are parts for."""
    known = depth % word_bits
    bits = jnp.minimum(31 - jax.lax.clz(room // jnp.maximum(groups, 1)), word_bits - known)
    return jnp.stack([depth // word_bits, word_bits - known - bits, bits])


def _cut_ties(first: jax.Array, equal: jax.Array, left: comm.Wide) -> jax.Array:
    """Where each rank's rows of each type are cut, ``(r, types)``, so that ``left`` of all that are equal are below.

    first, equal: ``(r, types)``, the first row at the splitter, and how many are there. They are cut in the order of
    types, then ranks.
    """
    by_type = equal.T.reshape(-1)
    # Sums over ranks may exceed 32 bits, so halves are summed apart.
    before_high = jnp.cumsum(by_type >> 16, dtype=jnp.int32) - (by_type >> 16)
    before_low = jnp.cumsum(by_type & 0xFFFF, dtype=jnp.int32) - (by_type & 0xFFFF)
    high, low = left.high - before_high, left.low - before_low
    high, low = high + (low >> 16), low & 0xFFFF
    here = jnp.where(high >= 2**14, 2**30, jnp.where(high < 0, 0, jnp.clip(high, 0, 2**14) * 65536 + low))
    # More than 2**30 particles at one point on one rank would be cut there too early; the ranks after it take the rest.
    taken = jnp.clip(here, 0, by_type)
    return first + taken.reshape(equal.shape[::-1]).T
