"""Plots of correlation functions, with their best-fitting power law."""

from typing import TYPE_CHECKING

import numpy as np

from ..correlation import Correlation, power_law
from ._figure import Path, drawing
from ._style import COLOURS, REFERENCE, with_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_correlation(
    found: Correlation, path: Path | None = None, *, projected: bool = False, length_unit: str = "", title: str = ""
) -> "Figure":
    """Plot a correlation function of one distance, on logarithmic axes, and for ``xi(r)`` the best-fitting power law.

    Bars are the errors of the jackknife. Without regions, the errors of ``xi(r)`` assume independent pairs (Poisson),
    ``(1 + xi)`` over the square root of the number of pairs, which is too small for correlated particles. A logarithmic
    axis cannot show values that are not positive; hollow circles show the absolute values of negative ones.

    Args:
        found: Result of `jztree_utils.correlation.xi`, or of `jztree_utils.correlation.wp` if it is ``projected``.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        length_unit: Unit of length in the labels.
        title: Title above the picture.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If ``found`` has several multipoles.
        OutputError: If ``path`` cannot be written.
    """
    if found.value.ndim != 1:
        raise ValueError(
            f"found has values of shape {found.value.shape}; give a function of one distance, such as a multipole."
        )
    with drawing(path, (6.4, 4.8)) as figure:
        ax = figure.subplots()
        r, value, error = found.centre, found.value, _errors(found, projected)
        positive, negative = value > 0, value < 0
        bars = None if error is None else error[positive]
        ax.errorbar(r[positive], value[positive], bars, fmt="o", color=COLOURS[0], markersize=5, linewidth=1.4)
        ax.plot(r[negative], -value[negative], "o", color=COLOURS[0], markersize=5, markerfacecolor="none")
        if not projected and positive.sum() > 1:
            r0, gamma = power_law(found)
            label = rf"$(r\,/\,{r0:.3g}\,\mathrm{{{length_unit}}})^{{{-gamma:.2f}}}$"
            ax.plot(r, (r / r0) ** -gamma, "--", color=REFERENCE, linewidth=1.4, label=label)
            ax.legend()
        name, symbol = ("distance across $r_p$", r"$w_p$") if projected else ("distance $r$", r"$\xi$")
        ax.set(xscale="log", title=title, xlabel=with_unit(name, length_unit))
        ax.set(ylabel=with_unit(symbol, length_unit if projected else ""))
        if (positive | negative).any():
            ax.set(yscale="log")
        return figure


def _errors(found: Correlation, projected: bool) -> np.ndarray | None:
    if found.error is not None:
        return found.error
    if projected:
        return None
    # Each pair within a set is counted in both orders.
    pairs = found.pairs if found.cross else found.pairs / 2
    return np.abs(1 + found.value) / np.sqrt(np.maximum(pairs, 1))
