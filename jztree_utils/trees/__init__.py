"""Merger trees of subhaloes: from the links between outputs to files that other tools open."""

from ._building import build_trees
from ._catalogues import TreesOfCatalogues, find_catalogues, trees_of_catalogues
from ._catalogues import has_catalogue as has_catalogue
from ._catalogues import number_outputs as number_outputs
from ._checking import check_trees
from ._files import read_times as read_times
from ._files import read_trees, write_trees
from ._linking import OutputMembers, link_outputs
from ._merger_trees import LinkedOutput, MergerTrees

__all__ = [
    "LinkedOutput",
    "MergerTrees",
    "OutputMembers",
    "TreesOfCatalogues",
    "build_trees",
    "check_trees",
    "find_catalogues",
    "link_outputs",
    "read_trees",
    "trees_of_catalogues",
    "write_trees",
]
