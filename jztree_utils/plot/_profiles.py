"""Pictures of radial profiles."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from jztree.overdensity import RadialProfiles

from ._figure import Path, drawing
from ._style import COLOURS, label_logarithmic, with_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_profiles(
    profiles: RadialProfiles,
    path: Path | None = None,
    *,
    labels: Sequence[str] = (),
    length_unit: str = "",
    mass_unit: str = "",
    velocity_unit: str = "",
    title: str = "",
) -> "Figure":
    """Plot density, mass and circular velocity against the radius, a curve for each centre.

    The density of a shell is at the geometric mean of its radii. Points without particles are left out.

    Args:
        profiles: The result of `jztree.radial_profiles`.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        labels: The name of each centre in the legend, such as its mass. An empty list draws no legend.
        length_unit: Unit of length in the labels.
        mass_unit: Unit of mass in the labels.
        velocity_unit: Unit of velocity in the labels.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        ValueError: If the number of labels differs from the number of centres.
    """
    radius = np.asarray(profiles.radius, np.float64)
    if labels and len(labels) != len(radius):
        raise ValueError(f"labels has {len(labels)} names, but profiles has {len(radius)} centres; pass one for each.")
    volume_unit = f"({length_unit})$^3$" if length_unit else ""
    density_unit = f"{mass_unit} / {volume_unit}" if mass_unit and volume_unit else ""
    panels = (
        (np.sqrt(radius[:, :-1] * radius[:, 1:]), profiles.density, with_unit("density", density_unit)),
        (radius, profiles.mass, with_unit("mass within", mass_unit)),
        (radius, profiles.circular_velocity, with_unit("circular velocity", velocity_unit)),
    )
    with drawing(path, (12.6, 4.4)) as figure:
        for ax, (places, values, label) in zip(figure.subplots(1, 3), panels, strict=True):
            ax.set(xscale="log", yscale="log", xlabel=with_unit("radius", length_unit), ylabel=label)
            for row, (x, y) in enumerate(zip(places, np.asarray(values, np.float64), strict=True)):
                is_shown = (x > 0) & (y > 0)
                name = labels[row] if labels else None
                ax.plot(x[is_shown], y[is_shown], color=COLOURS[row % len(COLOURS)], marker=".", label=name)
            if any(line.get_xydata().size for line in ax.lines):
                label_logarithmic(ax.xaxis)
                label_logarithmic(ax.yaxis)
        if labels:
            figure.axes[0].legend()
        figure.suptitle(title)
        return figure
