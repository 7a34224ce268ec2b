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
    correlation: Correlation,
    path: Path | None = None,
    *,
    projected: bool = False,
    length_unit: str = "",
    title: str = "",
) -> "Figure":
    """Plot a correlation function with the labels of its statistic.

    ``xi(r)``, ``wp(rp)`` and ``w(theta)`` have logarithmic axes, the first and the last also their best-fitting power
    law. Such an axis cannot show values that are not positive; hollow circles show the absolute values of negative
    ones. Multipoles are multiplied by ``s**2``, on a linear axis.

    Bars are the errors of the jackknife. Without regions, the errors of ``xi(r)`` and ``w(theta)`` assume independent
    pairs (Poisson), ``(1 + xi)`` over the square root of the number of pairs, which is too small for correlated
    particles.

    Args:
        correlation: Result of a function of `jztree_utils.correlation`, or of `jztree_utils.sky.w_theta`.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        projected: Whether the values are ``wp`` despite ``statistic``, for a `Correlation` that you constructed.
        length_unit: Unit of length in the labels.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        ValueError: If the shape of the values does not fit the statistic.
    """
    statistic = "wp" if projected else correlation.statistic
    dims = 2 if statistic == "multipoles" else 1
    if correlation.value.ndim != dims:
        raise ValueError(
            f"correlation is {statistic} with values of shape {correlation.value.shape}; they must be "
            f"{'(b,)' if dims == 1 else '(len(ells), b)'}."
        )
    with drawing(path, (6.4, 4.8)) as figure:
        ax = figure.subplots()
        ax.set(xscale="log", title=title)
        if dims == 2:
            _draw_multipoles(ax, correlation, length_unit)
        else:
            _draw_function(ax, correlation, statistic, length_unit)
        label_logarithmic(ax.xaxis)
        return figure


def _draw_function(ax: "Axes", correlation: Correlation, statistic: str, length_unit: str) -> None:
    """Draw a function of one distance or angle."""
    r, value, error = correlation.centre, correlation.value, _errors(correlation, statistic)
    unit = "degrees" if statistic == "w_theta" else length_unit
    name, symbol, variable = _LABELS[statistic]
    positive, negative = value > 0, value < 0
    bars = None if error is None else error[positive]
    ax.errorbar(r[positive], value[positive], bars, fmt="o", color=COLOURS[0], markersize=5, linewidth=1.4)
    ax.plot(r[negative], -value[negative], "o", color=COLOURS[0], markersize=5, markerfacecolor="none")
    if statistic in POWER_LAWS and positive.sum() > 1:
        r0, gamma = power_law(correlation)
        label = rf"$({variable}\,/\,{r0:.3g}\,\mathrm{{{unit}}})^{{{-gamma:.2f}}}$"
        ax.plot(r, (r / r0) ** -gamma, "--", color=REFERENCE, linewidth=1.4, label=label)
        ax.legend()
    ax.set(xlabel=with_unit(name, unit), ylabel=with_unit(symbol, length_unit if statistic == "wp" else ""))
    if (positive | negative).any():
        ax.set(yscale="log")
        label_logarithmic(ax.yaxis)


def _draw_multipoles(ax: "Axes", correlation: Correlation, length_unit: str) -> None:
    """Draw multipoles times the square of the distance."""
    s, error = correlation.centre, correlation.error
    ells = range(0, 2 * len(correlation.value), 2) if correlation.ells is None else correlation.ells
    for row, ell in enumerate(ells):
        bars = None if error is None else s**2 * error[row]
        colour = COLOURS[row % len(COLOURS)]
        ax.errorbar(
            s, s**2 * correlation.value[row], bars, fmt="o-", color=colour, markersize=5, label=rf"$\ell = {ell}$"
        )
    ax.axhline(0, color=REFERENCE, linewidth=1.0)
    ax.set(xlabel=with_unit("distance $s$", length_unit))
    ax.set(ylabel=with_unit(r"$s^2\,\xi_\ell$", f"({length_unit})$^2$" if length_unit else ""))
    ax.legend()


def _errors(correlation: Correlation, statistic: str) -> np.ndarray | None:
    if correlation.error is not None:
        return correlation.error
    if statistic not in POWER_LAWS:
        return None
    # Each pair within a set is counted in both orders.
    pairs = correlation.pairs if correlation.cross else correlation.pairs / 2
    return np.abs(1 + correlation.value) / np.sqrt(np.maximum(pairs, 1))
