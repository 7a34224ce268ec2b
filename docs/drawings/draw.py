"""Make the drawings of the documentation from results of the library: python docs/drawings/draw.py [FOLDER]

Without a folder, the drawings are written next to this file.
"""

import contextlib
import functools
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jax.sharding import PartitionSpec as P
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

import jztree as jz
from jztree import jax_ext
from jztree.tree import _zorder, ghosts
from jztree_utils import ics, plot

RANKS = 4
RANK_COLOURS = ["#3b6fb6", "#e08a1e", "#4b9a5d", "#9a5bb0"]
DARK, GREY, RED = "#222222", "#c9c9c9", "#c8352b"
KEY_BITS = 16  # per dimension, enough to distinguish the points of a drawing


def points(n: int, seed: int) -> np.ndarray:
    """Return points of the unit square, some of them in three clumps, ``(n, 2)`` float32."""
    random = np.random.default_rng(seed)
    centres = np.array([[0.3, 0.32], [0.7, 0.62], [0.22, 0.8]])
    clumped = centres[random.integers(0, 3, n)] + 0.07 * random.normal(size=(n, 2))
    pos = np.where(random.random((n, 1)) < 0.45, clumped, random.random((n, 2)))
    return np.asarray(np.clip(pos, 0.01, 0.99), np.float32)


def morton_keys(pos: np.ndarray) -> np.ndarray:
    """Return the keys of points of the unit square: the interleaved bits of the cell, x first; ``(n,)`` int64."""
    cells = np.floor(pos.astype(np.float64) * 2**KEY_BITS).astype(np.int64)
    bits = (cells[:, :, None] >> np.arange(KEY_BITS)) & 1
    return (bits << (2 * np.arange(KEY_BITS) + np.array([[1], [0]]))).sum(axis=(1, 2))


def square(ax: Any, title: str, cells: int = 0) -> None:
    """Draw an empty unit square with a grid of ``cells`` z-order cells per side."""
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
    ax.set_title(title, fontsize=10)
    for i in range(1, cells):
        width = 1.1 if 2 * i == cells else 0.4
        ax.axhline(i / cells, color=GREY, linewidth=width, zorder=0)
        ax.axvline(i / cells, color=GREY, linewidth=width, zorder=0)


def dots(ax: Any, pos: np.ndarray, colour: str, label: str | None = None) -> None:
    """Draw points, ``(n, 2)``."""
    ax.plot(*pos.T, ".", color=colour, markersize=5, markeredgewidth=0, label=label)


def boxes(ax: Any, th: jz.tree.TreeHierarchy, plane: int, **style: Any) -> None:
    """Draw the boxes of a plane's nodes, with a margin so that the boxes of single points are visible."""
    for low, high in zip(np.asarray(th.lower(plane)), np.asarray(th.upper(plane)), strict=True):
        ax.add_patch(Rectangle(low - 0.004, *(high - low + 0.008), fill=False, **style))


def draw_z_order() -> Figure:
    """Draw the curve through few and through many points."""
    figure = Figure(figsize=(8.2, 4.35), layout="constrained")
    for ax, n, cells in zip(figure.subplots(1, 2), (40, 300), (8, 16), strict=True):
        pos, _ = jz.tree.zsort.jit(points(n, 1), boxsize=1.0)
        square(ax, f"{n} points, in z-order", cells)
        ax.plot(*np.asarray(pos).T, color=GREY, linewidth=0.8, zorder=1)
        ax.scatter(*np.asarray(pos).T, c=np.arange(n), cmap="viridis", s=26 if n < 100 else 7, zorder=2)
        for row in range(0, n if n < 100 else 0, 3):
            ax.annotate(str(row), pos[row], xytext=(3, 3), textcoords="offset points", fontsize=7, color=DARK)
    return figure


def draw_window_rule() -> Figure:
    """Draw the levels at which neighbouring rows separate, and the boundary that each window contributes."""
    leaf_size, n = 6, 42
    partz, th = jz.tree.zsort_and_tree.jit(points(n, 1), jz.config.TreeConfig(leaf_size=leaf_size), boxsize=1.0)
    keys, splits = morton_keys(np.asarray(partz)), np.asarray(th.particle_splits(0))
    levels = np.array([2 * KEY_BITS] + [int(x).bit_length() for x in keys[1:] ^ keys[:-1]])
    chosen = [window + int(levels[window : window + leaf_size].argmax()) for window in range(0, n, leaf_size)]
    if list(splits[:-1]) != chosen:
        raise AssertionError("the drawing and the library do not have the same boundaries")
    figure = Figure(figsize=(9.4, 3.9), layout="constrained")
    ax, plane = figure.subplots(1, 2, width_ratios=(1.5, 1))
    base = 12
    for window in range(0, n, 2 * leaf_size):
        ax.axvspan(window - 0.5, window + leaf_size - 0.5, color="#f1f1f1", zorder=0)
    colours = [RED if row in chosen else GREY for row in range(n)]
    ax.bar(np.arange(n), levels - base, bottom=base, width=0.6, color=colours)
    for leaf in range(len(splits) - 1):
        ax.plot([splits[leaf] - 0.3, splits[leaf + 1] - 0.7], [base - 1] * 2, color=f"C{leaf % 10}", linewidth=5)
    ax.set(xlim=(-0.5, n - 0.5), ylim=(base - 2, 2 * KEY_BITS + 0.5), yticks=[])
    ax.set(xlabel="row in z-order", ylabel="highest bit that differs from the row before")
    ax.set_title(f"windows of {leaf_size} rows; in red, the boundary of each; below, the leaves", fontsize=10)
    ax.spines[["top", "right", "left"]].set_visible(False)
    square(plane, "the same leaves", 8)
    for leaf in range(len(splits) - 1):
        rows = np.asarray(partz)[splits[leaf] : splits[leaf + 1]]
        low, high = rows.min(axis=0), rows.max(axis=0)
        plane.scatter(*rows.T, color=f"C{leaf % 10}", s=16)
        plane.add_patch(Rectangle(low - 0.012, *(high - low + 0.024), fill=False, edgecolor=f"C{leaf % 10}"))
    return figure


def draw_planes() -> Figure:
    """Draw leaves and the nodes above them."""
    pos = points(700, 1)
    partz, th = jz.tree.zsort_and_tree.jit(pos, jz.config.TreeConfig(leaf_size=8), boxsize=1.0)
    figure = Figure(figsize=(8.2, 4.35), layout="constrained")
    for plane, ax in enumerate(figure.subplots(1, th.num_planes)):
        square(ax, f"plane {plane}: {th.num_nodes(plane)} {'nodes' if plane else 'leaves'}")
        dots(ax, np.asarray(partz), GREY)
        boxes(ax, th, plane, edgecolor=RANK_COLOURS[plane], linewidth=0.9)
    return figure


def ranges_and_ghosts(part: jz.data.Pos, radius: float) -> tuple[Any, Any]:
    """Return a rank's particles and its ghosts within ``radius`` of the boxes that it publishes. Call within a mesh."""
    partz, _ = jz.tree.distr_zsort(part, boxsize=1.0)
    box = jax_ext.exact(1.0, (2,))
    domain, (num,) = _zorder.domain_of([partz.pos], [partz.num], ["the positions"], box)
    th = jz.tree.build_tree_hierarchy(partz, boxsize=1.0)
    blocks = ghosts.leaves_of(th)
    published = ghosts.boxes_of(partz.pos, num, domain, blocks)
    requests = (published[1], published[2], jnp.full(published[1].shape[0], radius))
    place = ghosts.ghost_capacity("drawing", None, partz.pos.shape[0])
    known = functools.partial(ghosts.gather_boxes, partz.pos, num, domain, blocks, published)
    around = ghosts.exchange_ghosts(partz.pos, partz.pos, num, blocks, known, requests, box, place)
    return partz, (around.rows, around.num, around.start)


ranges_and_ghosts.smap = jax_ext.shard_map_constructor(  # type: ignore[attr-defined]
    ranges_and_ghosts, out_specs=P(-1), in_specs=(P(-1), P())
)


def draw_ghosts() -> Figure:
    """Draw the ranges of four ranks, and the ghosts of one rank."""
    rank, radius, n = 2, 0.05, 1100
    mesh = jax.make_mesh((RANKS,), ("ranks",), devices=jax.devices()[:RANKS])
    part = jz.data.expand_particles(jz.data.Pos(pos=points(n, 3), num=n), RANKS)
    partz, (rows, total, start) = jax.tree.map(np.asarray, ranges_and_ghosts.smap(mesh, jit=True)(part, radius))
    own = [partz.pos[r, : partz.num[r]] for r in range(RANKS)]
    after = start[rank] + len(own[rank])
    figure = Figure(figsize=(8.2, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    square(left, "what each of four ranks owns", 4)
    square(right, f"rank {rank}: its particles, and its ghosts", 4)
    side = np.linspace(0, 1, 161, dtype=np.float32)
    grid = np.stack(np.meshgrid(side, side), axis=-1)
    distance = jz.nearest.jit(own[rank], 1, queries=grid.reshape(-1, 2), boxsize=1.0).distance
    right.contourf(side, side, np.reshape(distance, grid.shape[:2]), [0, radius], colors=["#dff0e2"], zorder=0)
    dots(right, np.concatenate(own), "#dddddd")
    dots(right, rows[rank, : start[rank]], RANK_COLOURS[rank - 1], f"{start[rank]} of lower ranks")
    dots(right, rows[rank, after : total[rank]], RANK_COLOURS[rank + 1], f"{total[rank] - after} of higher ranks")
    dots(right, own[rank], RANK_COLOURS[rank], f"{len(own[rank])} of its own")
    for r in range(RANKS):
        dots(left, own[r], RANK_COLOURS[r], f"rank {r}")
    for ax in (left, right):
        ax.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, 0),
            ncols=4,
            frameon=False,
            fontsize=8,
            handletextpad=0,
            markerscale=1.5,
        )
    return figure


def draw_halos() -> Figure:
    """Draw the picture of the quickstart."""
    part, boxsize = ics.cosmo_3d_sample()
    _, catalogue = jz.friends_of_friends(part, 0.2 * boxsize / len(part.pos) ** (1 / 3), boxsize=boxsize)
    return plot.plot_halos(part.pos, catalogue, boxsize, length_unit="Mpc/h", mass_unit="1e10 Msun/h")


@functools.cache
def _names_of(page: str) -> dict[str, Any]:
    """Run the code of a page, and return its variables."""
    text = (Path(__file__).parent.parent / page).read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.M | re.S))
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        exec(code, names)
    return names


def draw_of_page(page: str, name: str) -> Figure:
    """Return the figure ``name`` of the code of a page."""
    return _names_of(page)[name]


DRAWINGS = {
    "z_order": draw_z_order,
    "window_rule": draw_window_rule,
    "planes": draw_planes,
    "ghosts": draw_ghosts,
    "halos": draw_halos,
    "survey": functools.partial(draw_of_page, "survey.md", "figure"),
    "dendrogram": functools.partial(draw_of_page, "linking_lengths.md", "dendrogram"),
    "condensed_tree": functools.partial(draw_of_page, "linking_lengths.md", "condensed_tree"),
}
DOTS_PER_INCH = {"halos": 110, "survey": 110, "dendrogram": 110, "condensed_tree": 110}
COLOURS = {"halos": 256}  # the colour bar shows the whole colour map


def main(folder: Path) -> None:
    """Write all drawings."""
    mpl.rcParams["font.size"] = 9
    for name, draw in DRAWINGS.items():
        figure = draw()
        figure.set_dpi(DOTS_PER_INCH.get(name, 160))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        # A palette reduces the files to a quarter of their size.
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(COLOURS.get(name, 96))
        picture.save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
