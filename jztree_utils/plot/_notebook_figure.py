"""Figures that notebooks display. This module imports matplotlib, so it is imported only to create a picture."""

from io import BytesIO

from matplotlib.figure import Figure

from ._style import DOTS_PER_INCH

_PIXELS_PER_INCH = 96  # of the page


class Picture(Figure):
    """A figure that a notebook displays if it is the value of a cell, without `matplotlib.pyplot`."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture and its display width, for Jupyter."""
        picture = BytesIO()
        self.savefig(picture, format="png", dpi=DOTS_PER_INCH)
        return picture.getvalue(), {"width": round(self.get_figwidth() * _PIXELS_PER_INCH)}
