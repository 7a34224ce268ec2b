"""Cut the z-order into one range per rank.

A splitter is a position in the z-order with the required number of rows before it, summed over ranks. One search finds
all splitters, from the most significant bits downwards. Splitters with the same known bits share a cell of the z-order.
The next bits divide a cell into parts. Every rank counts its own rows up to the end of each part; the sums over the
ranks determine the part of each splitter, and the search continues in that part.

A sum has space for a fixed number of parts per splitter. At first all splitters share one cell, which gets all parts.
Splitters that have the right number of rows need no further parts and leave theirs to the others. So few sums suffice
for any distribution of the rows over the ranks: 6 sums of 16 parts per splitter for 1e5 uniform particles on each of
2,048 ranks. The worst case needs all bits of a position, four at a time.

Equal points have no exact splitter; they are distributed in the order of the ranks.

Exact splitters: C. Siebert & F. Wolf (2011), "A scalable parallel sorting algorithm using exact splitting", doi
10.18154/RWTH-CONV-008835; they sum over pivots from the rows. Sums over parts: E. Solomonik & L. V. Kale (2010),
"Highly scalable parallel sorting", IPDPS.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..jax_ext import Exact

_Keys = tuple[jax.Array, jax.Array, Exact]

# Number of parts in a sum: per rank, and the minimum. Both are powers of two. Fewer parts need more sums, and more
# parts make larger sums: on 2,048 ranks, 16 per rank make 131 kB.
_PARTS_PER_RANK, _FEWEST_PARTS = 16, 4096


class SplitterSearch(NamedTuple):
    """The state of the search for splitters.

    Attributes:
        depth: int32, number of known bits of each splitter.
        places: ``(s, words)`` uint32, the known bits; the others are 0.
        left: ``(s, 2)`` int32, number of rows in the splitter's cell that precede it, summed over ranks, as high and
            low; see `comm.Wide`.
        rows: ``(types, s, 2)`` int32, the first row of this rank in the cell, and the number of its rows in the cell.
    """

    depth: jax.Array
    places: jax.Array
    left: jax.Array
    rows: jax.Array


def traffics_of(
    positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys, nsamp: int | None
) -> list[comm.Traffic]:
    """Return the traffic of each type that gives all ranks the same number of rows, summed over types.

    Args:
        positions: ``(n, d)`` of each type, in z-order.
        nums: Number of rows that hold particles, of each type.
        keys: Domain of the Morton keys.
        nsamp: If given, balance a sample of this size per rank instead, without cutting equal points apart.
    """
    nums = [kernels.as_num(num) for num in nums]
    cuts = _exact_cuts(positions, nums, keys) if nsamp is None else _sampled_cuts(positions, nums, keys, nsamp)
    traffics: list[comm.Traffic] = []
    for cut, num in zip(cuts, nums, strict=True):
        sent = rows_between(cut, num)
        traffics.append(comm.traffic_of(comm.after(sent, traffics[-1].most) if traffics else sent))
    return traffics


def rows_between(cuts: jax.Array, num: int | jax.Array) -> jax.Array:
    """Return the number of rows for each rank, ``(r,)`` int32, if ``num`` rows are cut at ``cuts``, ``(r - 1,)``."""
    return jnp.diff(jnp.concatenate([jnp.zeros(1, jnp.int32), cuts, kernels.as_num(num)[None]]))


def _exact_cuts(positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys) -> Sequence[jax.Array]:
    """Return the rows at which each type is cut for the ranks, ``(r - 1,)`` each."""
    rank, ndev, _ = comm.get_rank_info()
    search = find_splitters(positions, nums, keys)
    # Rank i cuts at the i-th splitter. For this cut, it needs every rank's rows at the splitter. The last rank has
    # no cut.
    at_splitter = comm.swap(jnp.pad(jnp.moveaxis(search.rows, 0, 1), [(0, 1), (0, 0), (0, 0)]))
    left = jnp.pad(search.left, [(0, 1), (0, 0)])[rank]
    cuts = comm.swap(_cut_ties(at_splitter[..., 0], at_splitter[..., 1], comm.Wide(left[0], left[1])))
    return [cuts[: ndev - 1, kind] for kind in range(len(nums))]


def _sampled_cuts(positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys, nsamp: int) -> Sequence[jax.Array]:
    """Return `_exact_cuts` of a sample of the rows."""
    # With the same stride on all ranks, every sample represents the same number of rows.
    stride = jnp.maximum(1, -(-comm.all_max(sum(nums)) // nsamp))
    rows = [jnp.minimum(jnp.arange(nsamp, dtype=jnp.int32) * stride, pos.shape[0] - 1) for pos in positions]
    samples = [kernels.gather_rows(pos, row) for pos, row in zip(positions, rows, strict=True)]
    places = find_splitters(samples, [-(-num // stride) for num in nums], keys).places
    return [kernels.key_positions(pos, num, *keys, places) for pos, num in zip(positions, nums, strict=True)]


def find_splitters(positions: Sequence[jax.Array], nums: Sequence[Any], keys: _Keys) -> SplitterSearch:
    """Return the splitters between the shares of the ranks, and the equal rows at each splitter, to be cut apart."""
    number, dims = comm.num_ranks() - 1, positions[0].shape[1]
    words, word_bits = kernels.splitter_words(dims), dims * (64 // dims)
    max_count = (number + 1) * sum(pos.shape[0] for pos in positions)
    max_parts = max(_FEWEST_PARTS, _PARTS_PER_RANK << number.bit_length())

    def narrow(search: SplitterSearch) -> SplitterSearch:
        groups = _groups(search)
        step = _next_bits(search.depth, groups[-1], max_parts, word_bits)
        counts = [
            kernels.count_parts(pos, *keys, search.places, rows, groups, step, max_parts)
            for pos, rows in zip(positions, search.rows, strict=True)
        ]
        sums = jnp.stack(comm.wide_sum(sum(counts), max_count), axis=-1)
        return SplitterSearch(
            search.depth + step[2], *kernels.choose_parts(sums, jnp.stack(counts), *search[1:], groups, step)
        )

    def unfinished(search: SplitterSearch) -> jax.Array:
        return jnp.any(search.left != 0) & (search.depth < words // 2 * word_bits)

    bounds = [jnp.broadcast_to(jnp.stack([jnp.zeros_like(num), num]), (number, 2)) for num in nums]
    # A value of -1 in left makes the first step determine the number of rows.
    remaining = jnp.full((number, 2), -1, jnp.int32)
    at_first = SplitterSearch(jnp.int32(0), jnp.zeros((number, words), jnp.uint32), remaining, jnp.stack(bounds))
    search = jax.tree.map(comm.vary, at_first)
    return jax.lax.while_loop(unfinished, narrow, search) if number else search


def _groups(search: SplitterSearch) -> jax.Array:
    """Return ``(s,)`` int32, cell numbers from 1 on for unfinished splitters, arbitrary numbers for the others."""
    is_open = jnp.any(search.left != 0, axis=1)
    # Among the splitters of a cell, the search finds those at its beginning first.
    like_last = is_open[:-1] & jnp.all(search.places[1:] == search.places[:-1], axis=1)
    return jnp.cumsum(is_open & ~jnp.pad(like_last, (1, 0)), dtype=jnp.int32)


def _next_bits(depth: jax.Array, groups: jax.Array, max_parts: int, word_bits: int) -> jax.Array:
    """Return the step for `kernels.count_parts`, with the largest number of bits for ``max_parts``."""
    known_bits = depth % word_bits
    bits = jnp.minimum(31 - jax.lax.clz(max_parts // jnp.maximum(groups, 1)), word_bits - known_bits)
    return jnp.stack([depth // word_bits, word_bits - known_bits - bits, bits])


def _cut_ties(first: jax.Array, equal: jax.Array, remaining_rows: comm.Wide) -> jax.Array:
    """Return the cut of each rank's rows of each type, ``(r, types)``, so that ``remaining_rows`` equal rows are below.

    Cuts go through the equal rows in the order of types, then ranks.

    Args:
        first: ``(r, types)``, the first row at the splitter.
        equal: ``(r, types)``, the number of rows at the splitter.
        remaining_rows: Number of equal rows below the cut, summed over ranks and types.
    """
    by_type = equal.T.reshape(-1)
    # Sums over ranks may exceed 32 bits, so sum the halves separately.
    before_high = jnp.cumsum(by_type >> 16, dtype=jnp.int32) - (by_type >> 16)
    before_low = jnp.cumsum(by_type & 0xFFFF, dtype=jnp.int32) - (by_type & 0xFFFF)
    high, low = remaining_rows.high - before_high, remaining_rows.low - before_low
    high, low = high + (low >> 16), low & 0xFFFF
    remaining = jnp.where(high >= 2**14, 2**30, jnp.where(high < 0, 0, jnp.clip(high, 0, 2**14) * 65536 + low))
    # With more than 2**30 particles at one point, a rank would be cut too early; later ranks take the rest.
    rows_of_type = jnp.clip(remaining, 0, by_type)
    return first + rows_of_type.reshape(equal.shape[::-1]).T
