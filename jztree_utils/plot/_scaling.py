"""Plots of run times against problem size, from the measurements that ``checks/`` writes."""

# ruff: noqa: PLC0415 - matplotlib is optional
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from ..io import check_is_file, unreadable
from ._figure import Path, drawing
from ._style import COLOURS, REFERENCE, label_logarithmic, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX"
_IDEAL: Any = {"color": REFERENCE, "linestyle": ":", "linewidth": 1.6}
_USUAL_K = 8  # in all measurements without an explicit k
_GPU_KEY = re.compile(r"(?P<what>\w+) (?P<kind>\w+) (?P<n>[\d.e]+)( k=(?P<k>\d+))?(?P<b> b=[\d.]+)?( (?P<where>\w+))?")
_NO_MEASUREMENT = "holds no times that checks/benchmarks, checks/profiling or checks/gpu wrote"


@dataclass(frozen=True)
class _Time:
    """The time of a call ``what`` on ``n`` particles in total; ``k`` is None for calls without neighbours."""

    what: str
    n: int
    k: int | None
    devices: int
    seconds: float


def read_measurements(path: Path) -> dict[str, Any]:
    """Read the results that a script of ``checks/`` wrote to a JSON file, for `plot_scaling`.

    Raises:
        ValueError: If the file has other contents or cannot be read.
    """
    check_is_file(FilePath(path))
    try:
        results = json.loads(FilePath(path).read_text())
    except OSError as error:
        raise unreadable(FilePath(path), error) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a JSON file ({error}); give a file that a script of checks/ wrote.") from error
    if not isinstance(results, dict) or not list(_times(results)):
        raise ValueError(f"{path} {_NO_MEASUREMENT}.")
    return results


def plot_scaling(
    results: Mapping[str, Any] | Sequence[Mapping[str, Any]], path: Path | None = None, *, title: str = ""
) -> "Figure":
    """Plot time against the number of particles, neighbours and devices, with one panel for each varied quantity.

    The first two panels are for one device. Times over devices have two panels: one for a fixed total number of
    particles (strong scaling) and one for a fixed number per device (weak scaling). Each uses the largest number that
    was measured on several devices. Dotted lines show ideal scaling: time in proportion to the number of particles or
    neighbours, or to the particles per device.

    Args:
        results: Contents of a file that ``checks/benchmarks``, ``checks/profiling`` or ``checks/gpu`` wrote
            (`read_measurements`), or of several files. Only several files show different numbers of particles on a CPU.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        title: Title above the picture.

    Returns:
        The `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If no quantity was varied.
        OutputError: If ``path`` cannot be written.
    """
    given = [results] if isinstance(results, Mapping) else list(results)
    times = [time for one in given for time in _times(one)]
    panels = [panel for panel in _panels(times) if panel.lines]
    if not panels:
        raise ValueError(
            "All measurements have the same number of particles, neighbours and devices, but a plot needs different "
            "numbers; give several files, for example from checks/benchmarks/one_device.py with several --n."
        )
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    columns, rows = min(len(panels), 2), (len(panels) + 1) // 2
    with drawing(path, (1 + 5.2 * columns, 1.2 + 4 * rows)) as figure:
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for ax, panel in zip(axes, panels, strict=False):
            panel.draw(ax, names)
        for ax in axes[len(panels) :]:
            ax.remove()
        _add_legend(figure, names, next_to_last=len(panels) < len(axes))
        figure.suptitle(title)
        return figure


@dataclass
class _Panel:
    """Lines of time over the varied quantity.

    Attributes:
        label: Label of the abscissa.
        title: Title of the panel.
        lines: Values of the abscissa, and seconds, by name.
        ideal: The power of the abscissa in an ideally scaling time.
    """

    label: str
    title: str
    lines: dict[str, tuple[np.ndarray, np.ndarray]]
    ideal: float

    def draw(self, ax: "Axes", names: list[str]) -> None:
        for name, (x, seconds) in self.lines.items():
            ax.plot(x, seconds, **_style(names.index(name)))
        x, seconds = max(self.lines.values(), key=lambda line: line[1].max())
        ax.plot(x, 1.4 * seconds[0] * (x / x[0]) ** self.ideal, **_IDEAL)
        ax.set(xscale="log", yscale="log", xlabel=self.label, ylabel="seconds", title=self.title)
        values = np.unique(np.concatenate([x for x, _ in self.lines.values()])).astype(int)
        label_logarithmic(ax.yaxis)
        if values[-1] < 10000 or len(values) < 4:
            plain_ticks(ax, values.tolist())


def _style(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 7,
        "linestyle": "-" if number < len(COLOURS) else "--",
    }


def _add_legend(figure: "Figure", names: list[str], next_to_last: bool) -> None:
    """Add one legend for all panels, next to the last panel or below all."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], label=name, **_style(number)) for number, name in enumerate(names)]
    lines.append(Line2D([], [], label="ideal", **_IDEAL))
    if next_to_last:
        figure.legend(handles=lines, loc="center", bbox_to_anchor=(0.78, 0.27), fontsize=13)
    else:
        figure.legend(handles=lines, loc="outside lower center", ncols=3)


def _panels(times: Sequence[_Time]) -> Iterator[_Panel]:
    alone = [time for time in times if time.devices == 1]
    usual = _USUAL_K if any(time.k == _USUAL_K for time in alone) else min((t.k for t in alone if t.k), default=0)
    plain = [time for time in alone if time.k in (None, usual)]
    with_k = "" if not any(time.k for time in plain) else f", $k$ = {usual}"
    yield _panel(f"one device{with_k}", "particles", plain, lambda t: (t.n, None), 1)
    yield _panel("one device, {:,} particles", "neighbours $k$", alone, lambda t: (t.k, t.n), 1)
    yield _panel("strong scaling: {:,} particles in all", "devices", times, lambda t: (t.devices, t.n), -1)
    yield _panel(
        "weak scaling: {:,} particles per device", "devices", times, lambda t: (t.devices, t.n // t.devices), 0
    )


def _panel(
    title: str,
    label: str,
    times: Sequence[_Time],
    split: Callable[[_Time], tuple[int | None, int | None]],
    ideal: float,
) -> _Panel:
    """Select the lines of one panel.

    Args:
        title: Title of the panel, with a placeholder for the fixed quantity.
        label: Label of the abscissa.
        times: Measurements of all panels.
        split: Returns the varied and the fixed quantity of a measurement. The panel shows the fixed value with the most
            values of the varied quantity, and the largest of several such values. Repeated measurements are replaced by
            their median.
    """
    result: dict[int | None, dict[str, dict[int, list[float]]]] = {}
    for time in times:
        x, fixed = split(time)
        if x is not None:
            result.setdefault(fixed, {}).setdefault(time.what, {}).setdefault(x, []).append(time.seconds)
    reach = {fixed: max(len(line) for line in lines.values()) for fixed, lines in result.items()}
    selected = max(reach, key=lambda fixed: (reach[fixed], fixed), default=None)
    lines = {what: line for what, line in result.get(selected, {}).items() if len(line) > 1}
    ordered = {what: sorted(line.items()) for what, line in lines.items()}
    drawn = {
        what: (np.array([x for x, _ in line], float), np.array([np.median(seconds) for _, seconds in line]))
        for what, line in ordered.items()
    }
    return _Panel(label, title.format(selected or 0), drawn, ideal)


def _times(results: Mapping[str, Any]) -> Iterator[_Time]:
    """Yield the times of whole calls in the results of any of the scripts."""
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        yield from _of_one_device(results)
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        yield from _of_several_devices(results)
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        yield from _of_gpu(results)


def _of_one_device(results: Mapping[str, Any]) -> Iterator[_Time]:
    for stage, seconds in results.get("stages periodic", {}).items():
        if name := _name(stage):
            yield _Time(name, int(results["n"]), _k_of(name), 1, float(seconds))


def _of_several_devices(results: Mapping[str, Any]) -> Iterator[_Time]:
    for case in results.get("cases", []):
        for stage, result in case["stages"].items():
            if name := _name(stage):
                yield _Time(name, int(case["total"]), _k_of(name), int(case["devices"]), float(result["seconds"]))


def _of_gpu(results: Mapping[str, Any]) -> Iterator[_Time]:
    for key, result in results.get("stages", {}).get("time", {}).items():
        match = _GPU_KEY.fullmatch(key)
        if match and match["where"] != "open" and "seconds" in result:
            what = f"{match['what']}{match['b'] or ''}, {match['kind']}"
            yield _Time(what, int(float(match["n"])), int(match["k"]) if match["k"] else None, 1, result["seconds"])


def _name(stage: str) -> str | None:
    """Return the display name of a stage; None if it is only a part of the user's waiting time, or a variant."""
    if "tree" in stage or stage in ("hierarchy", "knn, reduced"):
        return None
    return f"{stage} b=0.2" if stage in ("labels", "catalogue") else stage


def _k_of(what: str) -> int | None:
    return _USUAL_K if what.startswith("knn") else None
