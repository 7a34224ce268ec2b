"""Plots of time against N, k and threads, compared with other libraries."""

# ruff: noqa: PLC0415 - matplotlib is optional
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jztree_utils.plot import label_logarithmic, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"jztree": "C3", "nanoflann": "C0", "pykdtree": "C1", "scipy": "C2", "kdcount": "C4"}
_AXES = {"n": "particles", "k": "neighbours k", "threads": "threads"}


def sweeps(results: dict[str, Any], folder: Path) -> None:
    """Save ``against_n.png``, ``against_k.png`` and ``against_threads.png`` in a folder."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    for axis, label in _AXES.items():
        points = [point for point in results["sweeps"] if axis in point]
        works = list(dict.fromkeys(point["what"] for point in points))
        figure = Figure(figsize=(4.2 * len(works) + 0.4, 3.6), layout="constrained")
        for panel, work in zip(figure.subplots(1, len(works), squeeze=False)[0], works, strict=True):
            _panel(panel, axis, [point for point in points if point["what"] == work])
            panel.set(title=work, xlabel=label)
        machine = results["machine"]
        figure.suptitle(
            f"{machine['cpu']}, {machine['native']['instruction_set']}, {machine['native']['num_threads']} threads, "
            f"{machine['date']}",
            fontsize=8,
        )
        figure.savefig(folder / f"against_{axis}.png", dpi=130)


def _panel(panel: "Axes", axis: str, points: list[dict[str, Any]]) -> None:
    """Plot one kind of task: microseconds per particle against N, otherwise seconds."""
    for library in dict.fromkeys(point["library"] for point in points):
        selected = [point for point in points if point["library"] == library]
        scale = [1e6 / point["n"] if axis == "n" else 1.0 for point in selected]
        times = [point["seconds"] * factor for point, factor in zip(selected, scale, strict=True)]
        panel.plot([point[axis] for point in selected], times, "o-", color=_COLOURS[library], label=library)
    panel.set(xscale="log", yscale="log", ylabel="microseconds a particle" if axis == "n" else "seconds")
    label_logarithmic(panel.yaxis)
    if axis != "n":
        plain_ticks(panel, sorted({point[axis] for point in points}))
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
