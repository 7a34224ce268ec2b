"""Pairs of particles: lists of pairs within a radius, and counts of pairs in bins of their distance."""

from ._counts import PairCounts, pair_counts
from ._lists import PairLists, pairs_within
from ._wide_numbers import WideCounts, WideSums

__all__ = ["PairCounts", "PairLists", "WideCounts", "WideSums", "pair_counts", "pairs_within"]
