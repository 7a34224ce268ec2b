"""The hierarchy of clusters at all linking lengths, and that of the peaks of a density.

Single linkage joins clusters by the edges of the minimum spanning tree, shortest edge first (Gower & Ross 1969). `cut`
returns the groups at one linking length, and `dendrogram` the clusters at all lengths. `density_peaks` joins the peaks
of a density at their saddles, highest saddle first.
"""

from ._dendrogram import Dendrogram, cut, dendrogram
from ._peak_table import DensityPeaks, squeeze_peaks
from ._peaks import density_peaks

__all__ = ["Dendrogram", "DensityPeaks", "cut", "dendrogram", "density_peaks", "squeeze_peaks"]
