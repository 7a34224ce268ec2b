"""Plots of correlation functions, with their best-fitting power law if they have no unit."""

from typing import TYPE_CHECKING

import numpy as np

from ..correlation import POWER_LAWS, Correlation, power_law
from ._figure import Path, drawing
from ._style import COLOURS, REFERENCE, label_logarithmic, with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The abscissa, the ordinate and the variable of each function of one distance or angle.
_LABELS = {
    "xi": ("distance $r$", r"$\xi$", "r"),
    "wp": ("distance across $r_p$", "$w_p$", ""),
    "w_theta": (r"angle $\theta$", "$w$", r"\theta"),
}


def plot_correlation(
    found: Correlation, path: Path | None = None, *, projected: bool = False, length_unit: str = "", title: str = ""
) -> "Figure":
    """Plot a correlation function with the labels of its statistic.

    ``xi(r)``, ``wp(rp)`` and ``w(theta)`` have logarithmic axes, the first and the last also their best-fitting power
    law. Such an axis cannot show values that are not positive; hollow circles show the absolute values of negative
    ones. Multipoles are multiplied by ``s**2``, on a linear axis.

    Bars are the errors of the jackknife. Without regions, the errors of ``xi(r)`` and ``w(theta)`` assume independent
    pairs (Poisson), ``(1 + xi)`` over the square root of the number of pairs, which is too small for correlated
    particles.

    Args:
        found: Result of a function of `jztree_utils.correlation`, or of `jztree_utils.sky.w_theta`.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        projected: Whether ``found`` is ``wp`` despite its ``statistic``, for a `Correlation` that you constructed.
        length_unit: Unit of length in the labels.
        title: Title above the picture.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the shape of the values does not fit the statistic.
        OutputError: If ``path`` cannot be written.
    """
    statistic = "wp" if projected else found.statistic
    dims = 2 if statistic == "multipoles" else 1
    if found.value.ndim != dims:
        raise ValueError(
            f"found is {statistic} with values of shape {found.value.shape}; they must be "
            f"{'(b,)' if dims == 1 else '(len(ells), b)'}."
        )
    with drawing(path, (6.4, 4.8)) as figure:
        ax = figure.subplots()
        ax.set(xscale="log", title=title)
        if dims == 2:
            _draw_multipoles(ax, found, length_unit)
        else:
            _draw_function(ax, found, statistic, length_unit)
        label_logarithmic(ax.xaxis)
        return figure


def _draw_function(ax: "Axes", found: Correlation, statistic: str, length_unit: str) -> None:
    """Draw a function of one distance or angle."""
    r, value, error = found.centre, found.value, _errors(found, statistic)
    unit = "degrees" if statistic == "w_theta" else length_unit
    name, symbol, variable = _LABELS[statistic]
    positive, negative = value > 0, value < 0
    bars = None if error is None else error[positive]
    ax.errorbar(r[positive], value[positive], bars, fmt="o", color=COLOURS[0], markersize=5, linewidth=1.4)
    ax.plot(r[negative], -value[negative], "o", color=COLOURS[0], markersize=5, markerfacecolor="none")
    if statistic in POWER_LAWS and positive.sum() > 1:
        r0, gamma = power_law(found)
        label = rf"$({variable}\,/\,{r0:.3g}\,\mathrm{{{unit}}})^{{{-gamma:.2f}}}$"
        ax.plot(r, (r / r0) ** -gamma, "--", color=REFERENCE, linewidth=1.4, label=label)
        ax.legend()
    ax.set(xlabel=with_unit(name, unit), ylabel=with_unit(symbol, length_unit if statistic == "wp" else ""))
    if (positive | negative).any():
        ax.set(yscale="log")
        label_logarithmic(ax.yaxis)


def _draw_multipoles(ax: "Axes", found: Correlation, length_unit: str) -> None:
    """Draw multipoles times the square of the distance."""
    s, error = found.centre, found.error
    ells = range(0, 2 * len(found.value), 2) if found.ells is None else found.ells
    for row, ell in enumerate(ells):
        bars = None if error is None else s**2 * error[row]
        colour = COLOURS[row % len(COLOURS)]
        ax.errorbar(s, s**2 * found.value[row], bars, fmt="o-", color=colour, markersize=5, label=rf"$\ell = {ell}$")
    ax.axhline(0, color=REFERENCE, linewidth=1.0)
    ax.set(xlabel=with_unit("distance $s$", length_unit))
    ax.set(ylabel=with_unit(r"$s^2\,\xi_\ell$", f"({length_unit})$^2$" if length_unit else ""))
    ax.legend()


def _errors(found: Correlation, statistic: str) -> np.ndarray | None:
    if found.error is not None:
        return found.error
    if statistic not in POWER_LAWS:
        return None
    # Each pair within a set is counted in both orders.
    pairs = found.pairs if found.cross else found.pairs / 2
    return np.abs(1 + found.value) / np.sqrt(np.maximum(pairs, 1))
