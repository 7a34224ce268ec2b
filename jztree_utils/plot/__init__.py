"""Pictures of particles, groups, neighbours and measurements.

The functions need matplotlib (``pip install 'jztree-native[plot]'``), which is imported when you create a picture. Each
function returns a `matplotlib.figure.Figure`, and writes it if you pass a path. Figures do not use `matplotlib.pyplot`,
so they have no global state and need no display. A notebook displays the figure that a cell returns; `show`
displays one in the middle of a cell, or opens a window. Colour-blind readers can distinguish the colours, and text is
legible at half the width of a page.
"""

from ._clusters import plot_condensed_tree, plot_dendrogram
from ._correlation import plot_correlation
from ._density import plot_density, plot_halos, with_radii
from ._figure import check_picture, save_figure, show
from ._groups import particle_mass_of as particle_mass_of
from ._groups import plot_group_numbers, plot_group_sizes, plot_mass_function
from ._halo import plot_halo
from ._neighbours import plot_neighbour_distances
from ._profiles import plot_profiles
from ._style import label_logarithmic as label_logarithmic
from ._style import plain_ticks as plain_ticks
from ._trees import plot_mass_histories, plot_merger_tree

# The command line and the benchmarks also import the names that are not in this list.
__all__ = [
    "check_picture",
    "plot_condensed_tree",
    "plot_correlation",
    "plot_dendrogram",
    "plot_density",
    "plot_group_numbers",
    "plot_group_sizes",
    "plot_halo",
    "plot_halos",
    "plot_mass_function",
    "plot_mass_histories",
    "plot_merger_tree",
    "plot_neighbour_distances",
    "plot_profiles",
    "save_figure",
    "show",
    "with_radii",
]
