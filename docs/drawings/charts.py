"""Draw the charts of docs/performance.md from the tables of that page: python docs/drawings/charts.py [FOLDER]

Most sections have a picture and a table. `CHARTS` gives the way to draw each table. Without a folder, the charts are
written to `performance`, next to this file. The benchmarks draw ``against_n.png`` from their sweeps.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

PAGE = Path(__file__).parents[1] / "performance.md"
COLOURS = ["#3b6fb6", "#e08a1e", "#4b9a5d", "#9a5bb0"]

Table = dict[str, dict[str, float]]


def number(cell: str) -> float:
    """Return the number that a cell begins with, or NaN."""
    found = re.match(r"[\d.,]+", cell)
    return float(found[0].replace(",", "")) if found else float("nan")


def tables(page: str) -> dict[str, Table]:
    """Return the table of each section by the name of its picture: numbers by row and column."""
    found: dict[str, Table] = {}
    for section in page.split("\n## ")[1:]:
        names = re.findall(r"\]\(drawings/performance/(\w+)\.png\)", section)
        if not names:
            continue
        lines = [line.replace("`", "").strip("| ") for line in section.splitlines() if line.startswith("|")]
        (_, *columns), _, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
        found[names[0]] = {row[0]: dict(zip(columns, map(number, row[1:]), strict=False)) for row in rows}
    return found


def bars(axes: Any, table: Table, columns: list[str], **legend: Any) -> None:
    """Draw a horizontal bar for each row and column; the first row is at the top. ``legend`` has options of its box."""
    height = 0.8 / len(columns)
    for place, column in enumerate(columns):
        at = [row + (place - (len(columns) - 1) / 2) * height for row in range(len(table))]
        axes.barh(at, [row[column] for row in table.values()], height, color=COLOURS[place], label=column)
    axes.set_yticks(range(len(table)), list(table))
    axes.set_ylim(len(table) - 0.5, -0.5)
    if len(columns) > 1:
        axes.legend(**legend)


def draw_radius(axes: Any, table: Table) -> None:
    bars(axes, table, ["ratio"])
    axes.set(xscale="log", xlim=(1, None), xlabel="time of the other library, divided by the time of jztree")
    axes.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])


def draw_devices(axes: Any, table: Table) -> None:
    bars(axes, table, list(next(iter(table.values())))[:4], loc="lower right")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xlabel="time over four devices, divided by the time on one")


CHARTS: dict[str, Callable[[Any, Table], None]] = {"radius": draw_radius, "devices": draw_devices}
TALL = {"radius": 5.2, "devices": 4.2}


def main(folder: Path) -> None:
    """Write all charts."""
    found = tables(PAGE.read_text())
    for name, draw in CHARTS.items():
        figure = Figure(figsize=(7.5, TALL[name]), layout="constrained")
        axes = figure.subplots()
        draw(axes, found[name])
        axes.grid(axis="x", alpha=0.3)
        figure.savefig(folder / f"{name}.png", dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "performance")
