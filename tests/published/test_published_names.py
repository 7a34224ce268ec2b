"""Every public name, argument and default of the published package (jz-tree 1.1) must exist here, or be in a list with
the reason why it does not. `docs/coming_from.md` documents these differences for users.
"""

import ast
import importlib
import inspect
import math
from pathlib import Path
from typing import Any

import pytest

import jztree

CLASSES = {
    "jztree.config": """
def RegularizationConfig(regularize_percentile=90.0, max_volume_fac=20.0): ...
def TreeConfig(max_leaf_size=32, coarse_fac=6.0, stop_coarsen=1024, regularization=None, alloc_fac_nodes=1.0,
    nsamp=1024, mass_centered=False): ...
def FofCatalogueConfig(npart_min=20): ...
def FofConfig(alloc_fac_ilist=32.0, alloc_fac_distr_links=0.01, tree=OTHER, catalogue=OTHER): ...
def KNNConfig(alloc_fac_ilist=256.0, tree=OTHER): ...
""",
    "jztree.data": """
def Pos(pos, num=None, num_total=None): ...
def PosMass(pos, mass, num=None, num_total=None): ...
def ParticleData(pos, mass=None, vel=None, id=None, num=None, num_total=None): ...
def TreeHierarchy(size_leaves, ispl_n2n, ispl_n2l, ispl_l2p_per_type, lvl, geom_cent, mass=None, mass_cent=None): ...
def Label(irank, igroup, ilocal_segment=None): ...
def FofCatalogue(ngroups, mass=None, count=None, offset=None, com_pos=None, com_vel=None, com_inertia_radius=None,
    scale_factor=None, v_rad=None, offset_rank=None): ...
def RankIdx(rank, idx): ...
""",
    "jztree.stats": "def Statistics(allocation=OTHER, interaction=OTHER): ...",
}
METHODS = {
    "jztree.data.TreeHierarchy": "splits_leaf_to_part npart center poslvl num_planes num size info",
    "jztree.data.Label": "stacked",
    "jztree.data.FofCatalogue": "flatten",
    "jztree.stats.Statistics": "print_suggestions print_info reduce_multi_host",
}
FUNCTIONS = {
    "jztree.data": """
def static_field(*args, **kwargs): ...
def get_pos(part): ...
def get_pos_mass(part): ...
def get_num(part, default_to_length=False, default_to_nancount=True): ...
def get_num_total(part, default_to_length=False): ...
def flatten_particles(part): ...
def expand_particles(part, ndev): ...
def pad_particles(part, num, float_val=NAN, int_val=0): ...
def squeeze_any(data, size, num, ntot): ...
def squeeze_particles(part): ...
def all_particles_equal(p1, p2): ...
def squeeze_catalogue(cata, size_out=None, offset_mode="rank", nparts=None): ...
def sort_catalogue(cata, by="count", descending=True): ...
def catalogues_equal(c1, c2): ...
""",
    "jztree.fof": """
def fof_is_superset(igroup_sup, igroup, mask=None): ...
def fof_labels(part, rlink, boxsize=0.0, cfg=CONFIG, th=None, output_order="z"): ...
def distr_fof_labels(part, rlink, boxsize=0.0, cfg=CONFIG, th=None, linearize_labels=False): ...
def fof_and_catalogue(part, rlink, boxsize=0.0, cfg=CONFIG, th=None): ...
""",
    "jztree.jax_ext": """
def tree_map_by_len(fn, tree, N, axis=0): ...
def get_rank_info(axis_name=None): ...
def expanding_shard_map(f, *, out_specs=None, in_specs=None, mesh=None, axis_names=None, check_vma=True,
    input_tiled=False, output_tiled=False, jit=False): ...
def shard_map_constructor(f, out_specs=None, in_specs=None, default_mesh=None, axis_names=None, check_vma=True,
    input_tiled=False, output_tiled=False, **jit_kwargs): ...
""",
    "jztree.knn": """
def knn(part, k, boxsize=None, th=None, part_query=None, result="rad_globalidx", reduce_func=None,
    output_order="input", cfg=CONFIG): ...
""",
    "jztree.stats": "def statistics(ctx=None): ...",
    "jztree.tree": """
def zsort(pos): ...
def search_sorted_z(posz, posz_query, block_size=64, leaf_search=False): ...
def zsort_and_tree(part, cfg_tree=CONFIG, data=None, ptype=None, num_types=None, shrink=True): ...
def zsort_and_tree_multi_type(part, cfg_tree=CONFIG, data=None): ...
def center_of_mass(ispl, part, kahan_summation=True, block_size=32): ...
def distr_zsort(part, data=None, nsamp=1024, equalize=True): ...
def build_tree_hierarchy(partz, cfg_tree, lvl_bound=None, ptype=None, num_types=None): ...
""",
    "jztree_utils.ics": """
def uniform_particles(N, total_mass=1.0, seed=0, npad=0, dim=3): ...
def gaussian_particles(N, scale=1.0, total_mass=1.0, seed=0, npad=0, dim=3): ...
def hernquist_posmass(N, a=1.0, total_mass=1.0, seed=0, npad=0, dim=3, rmax=None): ...
def hernquist_particles(N, a=1.0, M=1.0, anisotropy=0.0, seed=None): ...
def discodj_particles(res, boxsize=100.0): ...
def multi_gpu_dj_sim(boxsize=1000.0, num_per_device=134217728): ...
def cosmo_2d_sample(): ...
""",
    "jztree_utils.io": """
def write_to_hdf5(group, data, *, compression="gzip", compression_opts=4): ...
def read_from_hdf5(group, cls): ...
def squeeze_any(data): ...
def write_h5file(file_name, squeeze=True, **data_sets): ...
def read_h5file(file_name, **data_classes): ...
def distr_write_hdf5(base_name, squeeze=True, **kwargs): ...
""",
}

# The differences, in the words of the user documentation.
_HIERARCHY = "a different hierarchy, with other fields"
_TYPES = "`ptype=`, `num_types=`"
DIFFERENT = {
    "jztree.data.TreeHierarchy": _HIERARCHY,
    **{
        f"jztree.data.TreeHierarchy.{method}": _HIERARCHY
        for method in ("splits_leaf_to_part", "npart", "poslvl", "num", "size", "info")
    },
    "jztree.data.Label(ilocal_segment)": "`Label` has no `ilocal_segment`",
    "jztree.stats.Statistics": "prints that it has no suggestions",
    "jztree.data.get_num(default_to_length=)": "rows of NaN without `num` are padding",
    "jztree.data.get_num(default_to_nancount=)": "rows of NaN without `num` are padding",
    "jztree.tree.zsort_and_tree(ptype, num_types, shrink)": _TYPES,
    "jztree.tree.build_tree_hierarchy(lvl_bound, ptype, num_types)": _TYPES,
    "jztree.config.TreeConfig(max_leaf_size=)": "`TreeConfig()` has `max_leaf_size`",
    "jztree_utils.ics.hernquist_particles": "which samples radii over many decades",
    "jztree_utils.ics.discodj_particles": "`ics.discodj_particles`",
    "jztree_utils.ics.multi_gpu_dj_sim": "`ics.multi_gpu_dj_sim`",
    "jztree_utils.io.distr_write_hdf5": "`distr_write_hdf5(base_name, squeeze, **kwargs)`",
}
_KINDS = {"VAR_POSITIONAL", "VAR_KEYWORD"}


def published(text: str) -> list[ast.FunctionDef]:
    return [item for item in ast.parse(text).body if isinstance(item, ast.FunctionDef)]


def arguments_of(one: ast.FunctionDef) -> dict[str, str | None]:
    """Return arguments in order, and their defaults as text; None if there is no default."""
    args = one.args
    places = [None] * (len(args.args) - len(args.defaults)) + [ast.unparse(value) for value in args.defaults]
    result = dict(zip([arg.arg for arg in args.args], places, strict=True))
    by_name = {
        arg.arg: ast.unparse(value) for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value
    }
    return result | by_name


def differences(where: str, one: ast.FunctionDef, ours: Any, in_order: bool) -> set[str]:
    """Return the differences between a function or class and the published one with its name."""
    expected, signature = arguments_of(one), inspect.signature(ours).parameters
    named = [name for name, parameter in signature.items() if parameter.kind.name not in _KINDS]
    missing = [name for name in expected if not _is_taken(ours, name, named)]
    result = {f"{where}({', '.join(missing)})"} if missing else set()
    there = [name for name in expected if name not in missing]
    if in_order and [name for name in named if name in there] != there:
        result.add(f"{where}: order")
    if in_order and not missing and named[: len(there)] != there:
        result.add(f"{where}: place")
    for name in there:
        default = signature[name].default if name in signature else getattr(ours(), name)
        if not _is_default(default, expected[name]):
            result.add(f"{where}({name}=)")
    return result


def _is_taken(ours: Any, name: str, named: list[str]) -> bool:
    """Return whether an argument is accepted. Configurations accept published names of fields renamed here."""
    if name in named or not inspect.isclass(ours) or not ours.__module__.endswith("config"):
        return name in named
    return hasattr(ours(), name)


def _is_default(ours: Any, text: str | None) -> bool:
    """Return whether a default is the published one. An argument that is optional here may be required there."""
    if text is None:
        return True
    if text in ("CONFIG", "OTHER"):
        return ours is None or not isinstance(ours, (int, float, str))
    return math.isnan(ours) if text == "NAN" else bool(ours == ast.literal_eval(text))


def unlike() -> set[str]:
    """Return all differences from the published package."""
    result = set()
    for module, text in [*CLASSES.items(), *FUNCTIONS.items()]:
        for item in published(text):
            where, ours = f"{module}.{item.name}", getattr(importlib.import_module(module), item.name, None)
            if ours is None or where in DIFFERENT:
                result.add(where)
            else:
                result |= differences(where, item, ours, in_order=module != "jztree.config")
    for name, methods in METHODS.items():
        module, _, cls = name.rpartition(".")
        held = getattr(importlib.import_module(module), cls)
        result |= {f"{name}.{method}" for method in methods.split() if not hasattr(held, method)}
    return result


def test_published_names_exist_except_documented_differences() -> None:
    assert unlike() == set(DIFFERENT)


def test_differences_are_documented_for_users() -> None:
    page = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text()
    for name, words in DIFFERENT.items():
        assert words in page, name


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("def knn(part, k, boxsize=None): ...", set()),
        ("def knn(part, k=3, boxsize=1.0): ...", {"x(k=)", "x(boxsize=)"}),
        ("def knn(k, part): ...", {"x: order", "x: place"}),
        ("def knn(part, boxsize=None): ...", {"x: place"}),
        ("def knn(part, colour): ...", {"x(colour)"}),
    ],
)
def test_differences_are_detected(text: str, result: set[str]) -> None:
    assert differences("x", published(text)[0], jztree.knn.knn, in_order=True) == result
