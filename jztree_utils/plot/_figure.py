"""What all pictures share: how they look, and how they are written or shown."""

# ruff: noqa: PLC0415 - matplotlib is optional
import importlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

from ..io import OutputError, atomic_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Path = str | os.PathLike[str]
# The colours of Okabe & Ito (2008), which colour-blind readers can tell apart, the clearest first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
REFERENCE = "0.35"  # the grey of what something is compared with
DOTS_PER_INCH = 150
_BETWEEN = 0.06  # panels, as a fraction of their width
_STYLE: Any = {
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


@contextmanager
def drawing(path: Path | None, size: tuple[float, float]) -> Iterator["Figure"]:
    """A figure of ``size`` in inches to draw on, which is written to ``path`` at the end, unless that is None.

    Raises ImportError if matplotlib is missing, and OutputError if the figure cannot be written, where possible before
    it is drawn.
    """
    figure_class = _import_matplotlib()
    import matplotlib as mpl

    if path is not None:
        check_picture(path)
    with mpl.rc_context(_STYLE):
        figure = figure_class(figsize=size, layout="compressed")
        figure.get_layout_engine().set(wspace=_BETWEEN)
        yield figure
        if path is not None:
            save_figure(figure, path)


def check_picture(path: Path) -> None:
    """Check that a picture can be made in the format of the suffix of ``path``. Meant to come before long work.

    Raises ImportError if matplotlib is missing, OutputError if the suffix is not that of a format it writes.
    """
    formats = sorted(_import_matplotlib()().canvas.get_supported_filetypes())
    if _suffix(path) not in formats:
        raise OutputError(f"The picture {path} has no suffix of a known format; use one of {', '.join(formats)}.")


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of the suffix of ``path``. Raises OutputError if it cannot be written."""
    picture = BytesIO()  # matplotlib hides what the system says when it fails to write a file of its own
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of what the picture shows itself
        figure.savefig(picture, format=_suffix(path), dpi=DOTS_PER_INCH)
    with atomic_output(path) as temporary:
        temporary.write_bytes(picture.getbuffer())


def show(figure: "Figure") -> None:
    """Display a figure in the notebook, or else in a window; returns when that is closed.

    Raises OutputError if there is neither.
    """
    if _in_notebook():
        importlib.import_module("IPython.display").display(figure)
        return
    manager = _canvas_of_windows().new_manager(figure, 1)
    manager.show()
    manager.start_main_loop()


def _canvas_of_windows() -> Any:
    """What matplotlib draws on in a window; OutputError if there can be none."""
    from matplotlib import backend_bases, pyplot

    try:
        own = pyplot.figure()  # tells what windows are made of
    except ImportError as error:
        raise OutputError(f"No window can be opened ({error}); write the picture to a file instead.") from error
    canvas: Any = type(own.canvas)
    pyplot.close(own)
    idle: Any = backend_bases.FigureManagerBase.start_main_loop
    if canvas.manager_class.start_main_loop.__func__ is idle.__func__:
        raise OutputError(
            f"There is no window to show the picture in (matplotlib's backend is {pyplot.get_backend()}); write it to "
            "a file instead."
        )
    return canvas


def _in_notebook() -> bool:
    """Whether Python runs in a kernel of Jupyter."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return hasattr(shell, "kernel")


def _import_matplotlib() -> Any:
    """The class of figures, bare of any window."""
    try:
        from ._picture import Picture
    except ValueError as error:  # what MPLBACKEND names
        raise ImportError(f"Matplotlib cannot be loaded ({' '.join(str(error).split())[:200]}).") from error
    except ImportError as error:
        raise ImportError("Pictures need matplotlib; install it with: pip install 'jztree[plot]'.") from error
    return Picture


def _suffix(path: Path) -> str:
    return os.path.splitext(path)[1].lstrip(".").lower()


def with_unit(name: str, unit: str) -> str:
    """A label such as ``mass [Msun/h]``."""
    return f"{name} [{unit}]" if unit else name


def plain_ticks(axes: "Axes", values: Any) -> None:
    """Ticks of a logarithmic abscissa at some ``values`` only, written as they are."""
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.set_xticks([], minor=True)


def label_short_range(axis: "Axis") -> None:
    """Label a logarithmic axis at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
