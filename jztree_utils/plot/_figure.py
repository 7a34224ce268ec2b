"""Creation, writing and display of figures."""

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
_BETWEEN = 0.06  # gap between panels, as a fraction of their width


@contextmanager
def drawing(path: Path | None, size: tuple[float, float]) -> Iterator["Figure"]:
    """Create a figure of ``size`` in inches; at the end of the block, write it to ``path`` unless ``path`` is None.

    Raises:
        ImportError: If matplotlib is missing.
        OutputError: If the figure cannot be written, if possible before the block runs.
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
    """Check that a picture can be written in the format of the suffix of ``path``. Call this before a long computation.

    Raises:
        ImportError: If matplotlib is missing.
        OutputError: If matplotlib cannot write the format of the suffix.
    """
    formats = sorted(_import_matplotlib()().canvas.get_supported_filetypes())
    if _suffix(path) not in formats:
        raise OutputError(
            f"The picture {path} does not have the suffix of a known format; use one of {', '.join(formats)}."
        )


def save_figure(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of the suffix of ``path``. Raises OutputError if it cannot be written."""
    picture = BytesIO()  # matplotlib hides system errors when it writes files itself
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the picture shows its own problems
        figure.savefig(picture, format=_suffix(path), dpi=DOTS_PER_INCH)
    with atomic_output(path) as temporary:
        temporary.write_bytes(picture.getbuffer())


def show(figure: "Figure") -> None:
    """Display a figure in the notebook, otherwise in a window; return when the window is closed.

    Raises:
        OutputError: If neither a notebook nor a window is available.
    """
    if _in_notebook():
        importlib.import_module("IPython.display").display(figure)
        return
    manager = _canvas_of_windows().new_manager(figure, 1)
    manager.show()
    manager.start_main_loop()


def _canvas_of_windows() -> Any:
    """Return matplotlib's canvas class for windows. Raises OutputError if windows are not available."""
    from matplotlib import backend_bases, pyplot

    try:
        own = pyplot.figure()  # shows the type of windows
    except ImportError as error:
        raise OutputError(f"No window can be opened ({error}); write the picture to a file instead.") from error
    canvas: Any = type(own.canvas)
    pyplot.close(own)
    idle: Any = backend_bases.FigureManagerBase.start_main_loop
    if canvas.manager_class.start_main_loop.__func__ is idle.__func__:
        raise OutputError(
            f"The picture cannot be shown, because matplotlib's backend {pyplot.get_backend()} has no windows; write "
            "it to a file instead."
        )
    return canvas


def _in_notebook() -> bool:
    """Return whether Python runs in a Jupyter kernel."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return hasattr(shell, "kernel")


def _import_matplotlib() -> Any:
    """Return the class of figures, independent of windows."""
    try:
        from ._notebook_figure import Picture
    except ValueError as error:  # an invalid MPLBACKEND
        raise ImportError(f"Matplotlib cannot be loaded ({' '.join(str(error).split())[:200]}).") from error
    except ImportError as error:
        raise ImportError("Pictures need matplotlib; install it with: pip install 'jztree-native[plot]'.") from error
    return Picture


def _suffix(path: Path) -> str:
    return os.path.splitext(path)[1].lstrip(".").lower()
