"""The structure of the library: imports have one direction, and names show what other packages may use."""

import ast
import importlib.util
import inspect
import itertools
from pathlib import Path

import pytest

import jztree

ROOT = Path(__file__).parents[2]
# From the bottom up. A module may import from its own line, without cycles, and from earlier lines.
FLOORS: list[set[str]] = [
    {"_options", "config", "stats", "launch"},
    {"particles", "_transform", "jax_ext"},
    {"kernels"},
    {"comm"},
    {"arguments", "data", "derivatives"},
    {"tree"},
    {"pairs", "sph", "within"},  # and the other searches: every public module that is not in another set
    {"density", "gravity", "halos", "hierarchy", "links", "substructure"},
]
SUBJECTS = {name for name in jztree.__all__ if inspect.ismodule(getattr(jztree, name))}
FLOORS[-2].update(SUBJECTS.difference(*FLOORS))
# Packages for the other packages of the library. `jztree.radius` is the public name of the last three.
INTERNAL = {f"jztree.{name}" for name in ("arguments", "derivatives", "particles", "pairs", "sph", "within")}
PUBLIC = {
    "jztree",
    "jztree.kernels",
    "jztree.tree.ghosts",
    "jztree.tree.stage",
    *(f"jztree.{name}" for name in SUBJECTS),
}
# The utilities, by subject. From the bottom up, like the library.
UTILITIES: list[set[str]] = [
    {"_arrays", "_constants", "_file_messages", "_header_ranges", "_memory", "progress"},
    {
        "io",  # files
        "ics",  # samples
        *("correlation", "knn_statistics", "mass_function", "separation", "sky"),  # statistics
        *("cells", "estimators", "hdbscan", "kdtree", "torch_bridge"),  # interoperability
        "check_cluster",
        "trees",
        "verify",
        "large",
    },
    {"plot", "view"},  # pictures
    {"cli"},
]
AROUND = sorted(name for name in set.union(*UTILITIES) if not name.startswith("_"))
PUBLIC |= {"jztree_utils", *(f"jztree_utils.{name}" for name in AROUND)}


def modules(package: str) -> dict[str, Path]:
    """Return the modules of a package by name; the name of a package is that of its ``__init__``."""
    result = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        result[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return result


def imports(package: str) -> dict[str, set[str]]:
    """Return the modules of the package that each module imports, anywhere in its text."""
    known = modules(package)
    return {name: {second for second in imported(name, path, known) if second != name} for name, path in known.items()}


def imported(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    tree = ast.parse(path.read_text())
    result = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            home = name if path.name == "__init__.py" else name.rpartition(".")[0]
            for _ in range(node.level - 1):
                home = home.rpartition(".")[0]
            source = ".".join(filter(None, (home if node.level else "", node.module)))
            names = {f"{source}.{alias.name}" for alias in node.names}
            result |= {full if full in known else source for full in names}
    return result & known.keys()


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """Return modules with a cyclic import, if there are any."""
    left = dict(arrows)
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    if not left:
        return []
    walk = [next(iter(left))]
    while walk[-1] not in walk[:-1]:
        walk.append(next(second for second in sorted(left[walk[-1]]) if second in left))
    return walk[walk.index(walk[-1]) :]


def test_import_cycle_is_detected() -> None:
    assert circle({"a": {"b"}, "b": set()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("package", ["jztree", "jztree_utils", "checks"])
def test_modules_have_no_import_cycles(package: str) -> None:
    assert circle(imports(package)) == []


@pytest.mark.parametrize(("package", "floors"), [("jztree", FLOORS), ("jztree_utils", UTILITIES)])
def test_imports_point_to_lower_layers(package: str, floors: list[set[str]]) -> None:
    floor = {name: height for height, names in enumerate(floors) for name in names}
    for name, others in imports(package).items():
        for second in others - {package}:
            above, below = (full.split(".")[1] if "." in full else full for full in (name, second))
            assert name == package or floor[above] >= floor[below], f"{name} imports {second}, which is above it"


def test_library_does_not_import_utilities() -> None:
    for path in modules("jztree").values():
        assert "jztree_utils" not in {name.split(".")[0] for name in imported("", path, {"jztree_utils": path})}


def test_private_modules_have_an_underscore() -> None:
    for name in modules("jztree") | modules("jztree_utils"):
        private = any(part.startswith("_") for part in name.split("."))
        assert private != (name in PUBLIC | INTERNAL), name
    without = set() if importlib.util.find_spec("torch") else {"jztree_utils.torch_bridge"}
    for name in PUBLIC - {"jztree", "jztree.kernels", "jztree_utils"} - without:
        assert importlib.import_module(name).__all__, name


def test_public_modules_have_an_entry_in_the_docs() -> None:
    entries = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.rst")).splitlines()
    for name in PUBLIC & modules("jztree").keys() - {"jztree", "jztree.kernels"}:
        assert f".. automodule:: {name}" in entries, name


@pytest.mark.parametrize("package", ["jztree_utils", "checks"])
def test_other_packages_import_public_modules_only(package: str) -> None:
    library = modules("jztree")
    for name, path in modules(package).items():
        for second in imported(name, path, library):
            assert second in PUBLIC, f"{name} imports {second}"


@pytest.mark.parametrize("package", ["jztree_utils", "checks"])
def test_private_modules_are_imported_in_their_package_only(package: str) -> None:
    known = modules("jztree_utils") | modules("checks")
    for name, path in modules(package).items():
        for second in imported(name, path, known):
            home = f"{second}.".partition("._")[0].rstrip(".")
            assert home in (second, "jztree_utils") or f"{name}.".startswith(f"{home}."), f"{name} imports {second}"


def test_files_are_not_too_long() -> None:
    code = itertools.chain.from_iterable(
        (ROOT / folder).rglob("*") for folder in ("jztree", "jztree_utils", "checks", "tests")
    )
    for path in code:
        if path.suffix in (".py", ".h", ".cc", ".cu", ".cuh"):
            lines = len(path.read_text().splitlines())
            assert lines <= 700, f"{path.relative_to(ROOT)} has {lines} lines"


def test_searches_have_short_names() -> None:
    assert jztree.nearest is jztree.knn.nearest
    assert jztree.friends_of_friends is jztree.fof.friends_of_friends
    searches = ("density", "fof", "overdensity", "radius")
    short = {"dbscan", "group_labels", *jztree.radius.__all__, *jztree.density.__all__, *jztree.overdensity.__all__}
    for module in searches:
        for name in short & set(getattr(jztree, module).__all__) & set(jztree.__all__):
            assert getattr(jztree, name) is getattr(getattr(jztree, module), name), name
