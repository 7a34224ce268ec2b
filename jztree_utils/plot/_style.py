"""The common style of the pictures: colours, sizes, and axis labels."""

# ruff: noqa: PLC0415 - matplotlib is optional
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# The colours of Okabe & Ito (2008), which colour-blind readers can distinguish, the clearest first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
REFERENCE = "0.35"  # the grey of reference curves
DOTS_PER_INCH = 150
_SHORT = 100  # a range for which powers of ten give too few labels, and all ticks too many
ON_DARK: Any = {"labelcolor": "white", "facecolor": "black", "frameon": True, "framealpha": 0.5}  # legends
STYLE: Any = {
    "font.size": 13,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "axes.titlesize": 13,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "0.9",
    "grid.linewidth": 0.8,
}


def with_unit(name: str, unit: str) -> str:
    """Return a label such as ``mass [Msun/h]``."""
    return f"{name} [{unit}]" if unit else name


def plain_ticks(axes: "Axes", values: Sequence[float]) -> None:
    """Set plain ticks of a logarithmic abscissa at the given ``values`` only."""
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.set_xticks([], minor=True)


def label_logarithmic(axis: "Axis") -> None:
    """Label a logarithmic axis; below two decades, at 1, 2 and 5 times the powers of ten. Call this last."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.axes.autoscale_view()
    low, high = axis.get_view_interval()
    if high < _SHORT * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(_number))
        axis.set_minor_formatter(NullFormatter())


def _number(value: float, _: int | None = None) -> str:
    """Return a number such as 0.02, 500 or $2\\times10^{12}$."""
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    mantissa, exponent = f"{value:e}".split("e")
    factor = f"{float(mantissa):g}"
    power = f"10^{{{int(exponent)}}}"
    return f"${power}$" if factor == "1" else f"${factor}\\times{power}$"
