"""The page of ``jztree view``: its content, and its display in a browser."""

import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jztree.data import FofCatalogue
from jztree_utils import cli, io, view

pytest.importorskip("plotly")
pytestmark = pytest.mark.usefixtures("one_device")
BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome", "chrome")
BOX = 10.0


def traces(path: Path) -> dict[str, dict[str, Any]]:
    """Return the traces of a page by name: plotly's JSON in its script, with its arrays decoded."""
    text = path.read_text()
    start = text.index("Plotly.newPlot(", text.index('id="view"'))
    data, _ = json.JSONDecoder().raw_decode(text, text.index("[", start))
    return {trace["name"]: decoded(trace) for trace in data}


def decoded(value: Any) -> Any:
    if isinstance(value, dict) and "bdata" in value:
        return np.frombuffer(base64.b64decode(value["bdata"]), np.dtype(value["dtype"]))
    return {name: decoded(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def coordinates(trace: dict[str, Any]) -> np.ndarray:
    return np.stack([np.asarray(trace[axis], float) for axis in "xyz"], axis=1)


def halos(g: int, random: np.random.Generator, **columns: Any) -> FofCatalogue:
    count = np.sort(random.integers(20, 1000, g))[::-1].astype(np.int32)
    offset = (np.cumsum(count) - count).astype(np.int32)
    centres = {"com_pos": random.random((g, 3)) * BOX, "com_inertia_radius": np.ones(g), "max_radius": None}
    return FofCatalogue(ngroups=g, count=count, offset=offset, **(centres | columns))


def test_shown_particles_are_a_subset_inside_the_box(tmp_path, random) -> None:
    pos = random.uniform(-BOX, 2 * BOX, (3000, 3)).astype(np.float32)
    view.view_in_3d(pos, tmp_path / "a.html", BOX, max_particles=1000)
    shown = traces(tmp_path / "a.html")
    assert set(shown) == {"1,000 of 3,000 particles", "box"}
    result = coordinates(shown["1,000 of 3,000 particles"]).astype(np.float32)
    wrapped = np.mod(pos, np.float64(BOX)).astype(np.float32)
    assert len({tuple(row) for row in result.tolist()} & {tuple(row) for row in wrapped.tolist()}) == 1000
    edges = coordinates(shown["box"]).reshape(12, 3, 3)
    np.testing.assert_array_equal(np.nansum(np.abs(edges[:, 1] - edges[:, 0]), axis=1), BOX)
    assert len({tuple(map(tuple, edge[:2].tolist())) for edge in edges}) == 12
    view.view_in_3d(pos[:7], tmp_path / "b.html")  # few particles, and no box
    few = traces(tmp_path / "b.html")
    np.testing.assert_array_equal(coordinates(few.pop("7 particles")), pos[:7])
    assert not few


def test_haloes_have_their_positions_masses_and_circles(tmp_path, random) -> None:
    mass = random.uniform(10, 2e4, 40)
    r200c = np.where(np.arange(40) < 30, random.uniform(0.1, 0.5, 40), 0)
    centre = random.uniform(-1, BOX + 1, (40, 3))
    cata = halos(40, random, mass=mass, max_radius=r200c + 1)
    columns = {"centre_pos": centre, "r200c": r200c, "m200c": mass / 2}
    options = {"length_unit": "Mpc/h", "mass_unit": "1e10 Msun/h", "title": "a < b"}
    view.view_in_3d(centre, tmp_path / "a.html", BOX, catalogue=cata, columns=columns, max_halos=35, **options)
    shown = traces(tmp_path / "a.html")
    points, lines, far = shown["35 largest of 40 halos"], shown["r200c"], shown["farthest member"]
    wrapped = np.mod(centre[:35], BOX)
    np.testing.assert_allclose(coordinates(points), wrapped, atol=1e-5)
    np.testing.assert_allclose(points["marker"]["color"], np.log10(mass[:35]), rtol=1e-6)
    data = np.asarray(points["customdata"], float)
    np.testing.assert_allclose(data, np.stack([np.arange(35), cata.count[:35], mass[:35], mass[:35] / 2], axis=1))
    assert "m200c %{customdata[3]:.4g} 1e10 Msun/h" in points["hovertemplate"]
    bar = points["marker"]["colorbar"]
    assert bar["title"]["text"] == "mass [1e10 Msun/h]"
    assert dict(zip(bar["ticktext"], bar["tickvals"], strict=True))["10<sup>4</sup>"] == 4
    assert (far["visible"], lines["visible"]) == ("legendonly", True)
    around = np.mod(cata.com_pos[:35], BOX)  # the extent of members is measured from the centre of mass
    for trace, places, radii in ((lines, wrapped, r200c[:30]), (far, around, r200c[:35] + 1)):
        circles = coordinates(trace).reshape(len(radii), 3, -1, 3)  # of each halo, with a gap after each circle
        assert np.isnan(circles[:, :, -1]).all()
        separation = np.linalg.norm(circles[:, :, :-1] - places[: len(radii), None, None], axis=-1)
        np.testing.assert_allclose(separation, np.broadcast_to(radii[:, None, None], separation.shape), rtol=1e-4)
        assert np.isfinite(circles[:, :, :-1]).all()
    assert "<title>a &lt; b</title>" in (tmp_path / "a.html").read_text()


def test_page_is_self_contained_and_reproducible(tmp_path, random) -> None:
    cata, pos = halos(5, random), random.random((500, 3))
    pages = []
    for name in ("a.html", "b.html"):
        view.view_in_3d(pos, tmp_path / name, 1.0, catalogue=cata, max_particles=100)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]
    assert not re.search(rb"<(script|link|img|iframe)[^>]*(src|href)=", pages[0])
    bar = traces(tmp_path / "a.html")["5 halos"]["marker"]["colorbar"]
    assert bar["title"]["text"] == "particles"


@pytest.mark.parametrize("g", [0, 1])
def test_few_haloes(g, tmp_path, random) -> None:
    view.view_in_3d(np.zeros((0, 3)), tmp_path / "a.html", catalogue=halos(g, random, mass=np.zeros(g)))
    assert len(traces(tmp_path / "a.html")[f"{g} halos"]["x"]) == g


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "view shows one snapshot, but none was given"),
        (["sample", "sample", "-o", "a.html"], "view shows one snapshot, but 2 were given"),
        (["sample"], "give it with -o."),
        (["sample", "-o", "a.png"], "The view a.png would be an HTML file; give it a name in .html."),
        (["sample", "-o", "a.html", "--halos", "-1"], "--halos is -1; it must be at least 0."),
        (["flat.npy", "--boxsize", "1", "-o", "a.html"], "pos has shape (9, 2); a view in 3D needs (n, 3)."),
        (["sample", "-o", "a.html", "--catalogue", "sample"], "view draws groups, but sample is a snapshot"),
    ],
)
def test_invalid_arguments_raise(arguments, words, error_of, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("flat.npy", np.zeros((9, 2)))
    assert words in error_of("view", *arguments)
    assert not Path("a.html").exists()


def test_missing_package_raises(error_of, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    words = "Views in 3D need plotly; install it with: pip install 'jztree-native[view]'."
    assert words in error_of("view", "sample", "-o", tmp_path / "a.html")


@pytest.mark.parametrize("layout", ["native", "swift"])
def test_command_line_shows_a_catalogue_in_the_units_of_the_snapshot(layout, tmp_path, capsys) -> None:
    """SWIFT units do not contain h, but the sample's units do."""
    output, page = str(tmp_path / "c.hdf5"), str(tmp_path / "a.html")
    assert cli.main(["fof", "sample", "-o", output, "--layout", layout, "-q"]) == 0
    assert cli.main(["view", "sample", "--catalogue", output, "-o", page, "--halos", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == page
    shown = traces(tmp_path / "a.html")
    assert set(shown) == {"30,000 of 110,592 particles", "box", "10 largest of 252 halos", "farthest member"}
    assert shown["farthest member"]["visible"] is True
    points = shown["10 largest of 252 halos"]
    held = io.convert_h(io.read_catalogue_content(output), h_free=False)
    np.testing.assert_allclose(coordinates(points), np.asarray(held.catalogue.com_pos)[:10], rtol=1e-5)
    np.testing.assert_allclose(np.asarray(points["customdata"], float)[:, 2], held.catalogue.mass[:10], rtol=1e-5)
    assert points["marker"]["colorbar"]["title"]["text"] == "mass [1e10 Msun/h]"


@pytest.mark.slow
def test_browser_shows_the_page(tmp_path, random) -> None:
    """The browser is headless, without a GPU. It draws the scene on a canvas, and the legend has all names."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs one of {', '.join(BROWSERS)}")
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    cata = halos(20, random, mass=np.linspace(1e4, 1e2, 20), max_radius=np.full(20, 0.7))
    view.view_in_3d(random.random((200, 3)) * BOX, page, BOX, catalogue=cata, title="a view")
    software = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-gpu-compositing"]
    call = [browser, "--headless", *software, "--window-size=600,500", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [*call, "--dump-dom", f"file://{page}"], capture_output=True, text=True, timeout=300, check=True
    )
    body = done.stdout[done.stdout.rindex('id="view"') :]
    assert "<canvas" in body
    for name in ("200 particles", "box", "20 halos", "farthest member", "a view"):
        assert re.search(rf"<text[^>]*>{name}</text>", body), name
    subprocess.run([*call, f"--screenshot={picture}", f"file://{page}"], capture_output=True, timeout=300, check=True)
    image = pytest.importorskip("matplotlib.image").imread(picture)[..., :3]
    left = image[:, : image.shape[1] * 3 // 4]  # without the colour bar
    assert np.count_nonzero(np.ptp(left, axis=2) > 0.3) > 100  # coloured haloes and circles
