"""Figures that notebooks display by themselves. Imports matplotlib, so it is imported when a picture is made."""

from io import BytesIO

from matplotlib.figure import Figure

from ._style import DOTS_PER_INCH

_PIXELS_PER_INCH = 96  # of the page


class Picture(Figure):
    """A figure that is displayed where it is the value of a cell, without `matplotlib.pyplot`."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """What Jupyter asks for: the picture, and how wide it is to be shown."""
        picture = BytesIO()
        self.savefig(picture, format="png", dpi=DOTS_PER_INCH)
        return picture.getvalue(), {"width": round(self.get_figwidth() * _PIXELS_PER_INCH)}
