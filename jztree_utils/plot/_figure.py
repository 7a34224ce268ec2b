"""Figures: a new one to draw on, and how one is written or shown."""

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
from ._style import DOTS_PER_INCH, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Path = str | os.PathLike[str]
_BETWEEN = 0.06  # panels, as a fraction of their width


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
    with mpl.rc_context(STYLE):
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
        from ._notebook_figure import Picture
    except ValueError as error:  # what MPLBACKEND names
        raise ImportError(f"Matplotlib cannot be loaded ({' '.join(str(error).split())[:200]}).") from error
    except ImportError as error:
        raise ImportError("Pictures need matplotlib; install it with: pip install 'jztree-native[plot]'.") from error
    return Picture


def _suffix(path: Path) -> str:
    return os.path.splitext(path)[1].lstrip(".").lower()
