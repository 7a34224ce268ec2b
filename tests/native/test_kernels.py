"""The interface to native code: identical bits on all systems, moves and their derivatives, and error messages."""

import ctypes
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import data, kernels, tree
from jztree.config import TreeConfig
from jztree.fof import fof_and_catalogue, fof_labels
from jztree.jax_ext import exact
from jztree.kernels import _call
from jztree.knn import knn
from jztree.radius import pair_counts

SOURCES = Path(__file__).parents[2] / "jztree/native"


def answers(dtype: Any, n: int = 40_000) -> list[bytes]:
    """Return the bits of one run of every kernel, on input with clumps, duplicates, padding and an outlier."""
    random = np.random.default_rng(51)
    pos = oracles.clustered(n, 3, dtype)
    pos[::9] = pos[0]
    pos[5] = 0.999
    part = data.ParticleData(
        pos=jnp.asarray(pos), mass=jnp.asarray(random.random(n), dtype), vel=jnp.asarray(pos - 0.5), num=n - 100
    )
    query = jnp.asarray(oracles.uniform(2000, 3, dtype, seed=7))
    results: list[Any] = [tree.zsort(part), tree.zsort_and_tree(part, TreeConfig(masses=True), boxsize=1.0)]
    for box in (None, 1.0, [1.0, 0.0, 1.25]):
        results += [knn(part, 9, boxsize=box), knn(part, 3, boxsize=box, part_query=query)]
        results += [fof_labels(part, 0.003, box), fof_labels(part, 0.003, box, output_order="input")]
        results += [fof_and_catalogue(part, 0.003, box)]
    results += [knn(pos[:3000], 40, boxsize=1.0)]
    weights = {"weights": part.mass, "query_weights": query[:, 0]}
    for seconds in ({}, {"mode": "rp_pi", "edges_b": [0.0, 0.02, 0.04]}, {"mode": "s_mu", "edges_b": [0.0, 0.5, 1.0]}):
        results += [pair_counts(pos, [0.01, 0.03, 0.03003, 0.03006, 0.05], queries=query, **weights, **seconds)]
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(results)]


@pytest.mark.parametrize("limit", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 7])
def test_same_bits_with_any_number_of_threads(set_threads: Any, limit: int, dtype: Any) -> None:
    expected = answers(dtype)
    set_threads(limit)
    for _ in range(2):
        assert answers(dtype) == expected


_PRINT_HASH = """
import jax, numpy
from native import test_kernels
print(test_kernels.kernels.native_info()["instruction_set"])
print(test_kernels.hashed(numpy.float32, 6000))
with jax.enable_x64(True):
    print(test_kernels.hashed(numpy.float64, 6000))
"""


def run_with_instruction_set(name: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a separate process, with the jztree under test."""
    return run_in_environment({"JZTREE_INSTRUCTION_SET": name}, script)


def run_in_environment(environment: dict[str, str], script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a separate process with more environment variables, and with the jztree under test."""
    folders = [str(Path(__file__).parents[1]), str(Path(kernels.__file__).parents[2])]
    return subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path[:0] = {folders}\n{script}"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


_COMPARE_THREADS = """
import jax, numpy
import jztree as jz
from jztree import kernels
pos = numpy.random.default_rng(3).random((300_000, 3), numpy.float32)
def answers():
    results = [jz.tree.zsort_and_tree(pos, boxsize=1.0), jz.fof.fof_and_catalogue(pos, 0.004, 1.0)]
    results += [jz.neighbours_within(pos, 0.01, boxsize=1.0), jz.pairs_within(pos, 0.005, boxsize=1.0)]
    return [numpy.asarray(leaf).tobytes() for leaf in jax.tree.leaves(results)]
with_many = answers()
kernels.set_num_threads(1)
print(with_many == answers())
"""


@pytest.mark.parametrize("threads", [64, 128])
def test_same_bits_with_more_threads_than_cores(threads: int) -> None:
    done = run_in_environment({"PJRT_NPROC": str(threads)}, _COMPARE_THREADS)
    assert done.stdout.split() == ["True"], done.stderr


def hashed(dtype: Any, n: int) -> str:
    return hashlib.sha256(b"".join(answers(dtype, n))).hexdigest()


def instruction_sets() -> list[str]:
    """Return the installed instruction sets that run on this machine, the most basic first."""
    library = Path(kernels.native_info()["cpu_library"])
    named = sorted(
        path.stem.removeprefix("libjztree_cpu_") for path in library.parent.glob("libjztree_cpu_x86-64-*.so")
    )
    best = kernels.native_info()["instruction_set"]
    # The most basic library has no suffix; a development installation may have no other.
    return ["x86-64-v2", *(name for name in named if name <= best)] if named and best.startswith("x86-64") else []


@pytest.mark.skipif(len(instruction_sets()) < 2, reason="only one instruction set is installed or runs here")
def test_same_bits_with_every_instruction_set() -> None:
    hashes = {}
    for name in instruction_sets():
        run = run_with_instruction_set(name, _PRINT_HASH)
        assert run.returncode == 0, run.stderr
        used, *hashes[name] = run.stdout.split()
        assert used == name
    assert len(set(map(tuple, hashes.values()))) == 1, hashes


def test_unknown_instruction_set_raises_a_one_sentence_error() -> None:
    run = run_with_instruction_set("pdp-11", "import jztree")
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError")
    assert "pdp-11" in last


@pytest.mark.parametrize("num", [0, -1])
def test_number_of_threads_must_be_positive(num: int) -> None:
    with pytest.raises(ValueError, match=str(num)):
        kernels.set_num_threads(num)


def test_native_info() -> None:
    info = kernels.native_info()
    assert Path(info["cpu_library"]).is_file()
    assert info["instruction_set"]
    assert info["num_threads"] >= 1


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (7,), (0,)], ids=str)
@pytest.mark.parametrize("dtype_name", ["float32", "int8", "bool", "complex64"])
def test_gather_and_scatter_move_whole_rows(dtype_name: str, shape: tuple[int, ...]) -> None:
    array = jnp.arange(20 * int(np.prod(shape))).reshape(20, *shape).astype(dtype_name)
    order = jnp.asarray(np.random.default_rng(1).permutation(20), jnp.int32)
    sample = jnp.asarray([3, 3, 19, 0], jnp.int32)
    np.testing.assert_array_equal(kernels.gather_rows(array, order), array[order])
    np.testing.assert_array_equal(kernels.gather_rows(array, sample), array[sample])
    np.testing.assert_array_equal(kernels.scatter_rows(array, order)[order], array)


def test_gather_with_no_rows() -> None:
    assert kernels.gather_rows(jnp.zeros((5, 3)), jnp.zeros(0, jnp.int32)).shape == (0, 3)


@pytest.mark.parametrize("index", [-1, 5, 2**31 - 1])
def test_rows_outside_the_array_raise(index: int) -> None:
    gpus.skip_where_kernels_cannot_raise()
    rows = jnp.array([0, index], jnp.int32)
    for dtype in (jnp.float32, jnp.int32):
        with pytest.raises(oracles.RUN_TIME_ERROR, match="outside"):
            jax.block_until_ready(kernels.gather_rows(jnp.zeros((5, 3), dtype), rows))
        with pytest.raises(oracles.RUN_TIME_ERROR, match="outside"):
            jax.block_until_ready(kernels.scatter_rows(jnp.zeros((2, 3), dtype), rows))


@pytest.mark.long
@pytest.mark.parametrize("move", [kernels.gather_rows, kernels.scatter_rows])
def test_derivatives_of_moves(move: Any, x64: None) -> None:
    array = jnp.asarray(oracles.uniform(9, 2, np.float64))
    order = jnp.asarray(np.random.default_rng(1).permutation(9), jnp.int32)
    weight = jnp.arange(18.0).reshape(9, 2)

    def loss(x: Any, func: Any) -> Any:
        return (weight * func(x, order) ** 3).sum()

    def plain(x: Any, index: Any) -> Any:
        return x[index] if move is kernels.gather_rows else jnp.zeros_like(x).at[index].set(x)

    for derive in (jax.grad, jax.hessian, jax.jacfwd):
        expected = derive(lambda x: loss(x, plain))(array)
        np.testing.assert_allclose(derive(lambda x: loss(x, move))(array), expected, rtol=1e-13)
        np.testing.assert_allclose(jax.jit(derive(lambda x: loss(x, move)))(array), expected, rtol=1e-13)


def test_gather_of_repeated_rows_adds_their_gradients() -> None:
    rows = jnp.array([2, 2, 0], jnp.int32)
    gradient = jax.grad(lambda x: kernels.gather_rows(x, rows).sum())(jnp.zeros((4, 2)))
    np.testing.assert_array_equal(gradient, [[1, 1], [0, 0], [2, 2], [0, 0]])


def test_check_returns_its_number_or_raises() -> None:
    checked = jax.jit(lambda num, bad: kernels.check(num, bad, [num, 7], "{0} is not {1}, {0}."))
    assert int(checked(3, False)) == 3
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"jztree: 3 is not 7, 3\."):
        jax.block_until_ready(checked(3, True))
    assert int(checked(4, False)) == 4


def test_bounds_ignore_rows_that_are_not_finite(dtype: Any) -> None:
    pos = oracles.uniform(50_000, 2, dtype) - dtype(0.5)
    pos[[40_000, 33_000]] = np.nan
    lower, upper, *bad = kernels.bounds(jnp.asarray(pos), 45_000)
    good = pos[:45_000][np.isfinite(pos[:45_000]).all(axis=1)]
    np.testing.assert_array_equal(lower, good.min(axis=0))
    np.testing.assert_array_equal(upper, good.max(axis=0))
    assert [int(item) for item in bad] == [33_000, 2]
    assert [int(array) for array in kernels.bounds(jnp.asarray(pos), 33_000)[2:]] == [-1, 0]


@pytest.mark.parametrize("kind", ["runs", "anywhere", "one large group"])
def test_group_order_is_a_stable_sort_by_group(kind: str) -> None:
    """Groups continue in several parts of the rows, which threads process at once."""
    n, num, min_count = 70_000, 69_000, 5
    random = np.random.default_rng(5)
    group = random.integers(0, n // 10, n)
    group = {"runs": np.sort(group), "anywhere": group, "one large group": np.where(group % 2, group, 0)}[kind]
    label = oracles.smallest_members(group[:num])
    order, ngroups, count, offset = map(
        np.asarray, kernels.group_order(jnp.asarray(np.append(label, np.zeros(n - num)), jnp.int32), num, min_count)
    )
    sizes, rows = np.bincount(label, minlength=num), np.arange(n)
    listed = sizes[label] >= min_count
    by_group = rows[:num][listed][np.argsort(label[listed], kind="stable")]
    np.testing.assert_array_equal(order, np.concatenate([by_group, rows[:num][~listed], rows[num:]]))
    sizes = sizes[sizes >= min_count]
    assert ngroups == len(sizes)
    np.testing.assert_array_equal(count[:ngroups], sizes)
    np.testing.assert_array_equal(offset[:ngroups], np.cumsum(sizes) - sizes)


def test_group_order_with_labels_outside_the_particles_raises() -> None:
    gpus.skip_where_kernels_cannot_raise()
    for label in ([0, 5, 0], [0, -1, 0]):
        with pytest.raises(oracles.RUN_TIME_ERROR, match="row 1 "):
            jax.block_until_ready(kernels.group_order(jnp.asarray(label, jnp.int32), 3, 1))


@pytest.mark.parametrize("call", ["knn", "fof"])
def test_compiled_function_works_again_after_an_error(call: str) -> None:
    search = jax.jit(
        (lambda pos: knn(pos, 3, boxsize=1.0)) if call == "knn" else (lambda pos: fof_labels(pos, 0.1, 1.0))
    )
    good = jnp.asarray(oracles.uniform(300, 3))
    expected = jax.tree.map(np.asarray, search(good))
    for _ in range(3):
        with pytest.raises(oracles.RUN_TIME_ERROR, match="row 11 "):
            jax.block_until_ready(search(good.at[11, 0].set(jnp.nan)))
        for a, b in zip(jax.tree.leaves(search(good)), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)


def test_concurrent_calls_do_not_block_each_other() -> None:
    """Independent kernels of one program share the thread pool."""
    batch = [jnp.asarray(oracles.uniform(20_000, 3, seed=s)) for s in range(6)]
    together = jax.jit(lambda parts: [knn(pos, 4) for pos in parts])(batch)
    for pos, result in zip(batch, together, strict=True):
        np.testing.assert_array_equal(result[1], knn(pos, 4)[1])


def test_unavailable_instruction_set_raises_on_import() -> None:
    done = run_with_instruction_set("foo", "import jztree")
    assert re.search(
        r"ImportError: the environment variable JZTREE_INSTRUCTION_SET is 'foo', but jztree is compiled for .*"
        r"here; set it to one that is compiled, or unset it for the best one of this machine\.\n\Z",
        done.stderr,
    )


def call_wrongly(target: str, out: Any, *args: Any, **attributes: Any) -> str:
    """Return the error message of a kernel called with wrong arguments."""
    with pytest.raises(oracles.RUN_TIME_ERROR, match="jztree: ") as error:
        jax.block_until_ready(_call.call(target, out, *args, **attributes))
    return str(error.value)


def test_array_shape_errors_name_both_shapes() -> None:
    pos, num, box = jnp.zeros((7, 3)), kernels.as_num(7), exact(0, (3,)).words
    rows, sorted_pos = _call.i32(7), jax.ShapeDtypeStruct((7, 3), jnp.float32)
    corner, no = jnp.zeros(3), kernels.as_num(0)
    calls = [
        (
            ((_call.i32(6), sorted_pos), pos, num, corner, corner, box, no),
            "the kernel zsort was called with order of int32 (6,); it must be int32 (7,).",
        ),
        (
            ((rows, sorted_pos), pos, num, jnp.zeros(2), corner, box, no),
            "the kernel zsort was called with lower of float32 (2,); it must be float32 (3,).",
        ),
        (
            ((rows, sorted_pos), pos, num, corner, jnp.zeros((1, 3), jnp.int32), box, no),
            "the kernel zsort was called with upper of int32 (1, 3); it must be float32 (3,).",
        ),
        (
            ((rows, sorted_pos), pos, num, corner, corner, exact(0, (2,)).words, no),
            "it must be float words of 3 numbers.",
        ),
        (((rows, sorted_pos), pos, num, corner, corner), "the kernel zsort was called without box."),
        (
            ((rows, sorted_pos, rows), pos, num, corner, corner, box, no, num),
            "the kernel zsort was called with 1 extra arguments and 1 extra results.",
        ),
        (
            ((rows, sorted_pos), jnp.zeros((7, 9)), num, corner, corner, box, no),
            "positions have 9 dimensions; this function supports 1 to 8.",
        ),
        (((rows, sorted_pos), num), "positions must be float32 or float64 and have shape (n, d)."),
    ]
    for arguments, words in calls:
        assert words in call_wrongly("zsort", *arguments, gradients="stopped")


def test_hierarchy_shape_error_names_the_argument(x64: None) -> None:
    partz, th = tree.zsort_and_tree(jnp.asarray(oracles.uniform(300, 3)))
    sources = tree.kernel_tree(partz, 300, th)
    queries = sources._replace(lower=sources.lower[1:])
    with pytest.raises(oracles.RUN_TIME_ERROR) as error:
        jax.block_until_ready(kernels.knn(sources, None, queries, None, 3, exact(0, (3,))))
    nodes = sum(th.plane_sizes)
    assert (
        f"the kernel knn was called with query_lower of float32 ({nodes - 1}, 3); it must be float32 ({nodes}, 3)."
        in str(error.value)
    )


def test_updated_argument_must_have_the_shape_of_its_output() -> None:
    edges = jnp.zeros((4, 4), jnp.int32)
    message = call_wrongly(
        "take_hooks",
        (_call.i32(5, 2), _call.i32(5), _call.i32()),
        jnp.zeros((1, 2, 3), jnp.uint32),
        jnp.zeros(1, jnp.int32),
        jnp.int32(0),
        *(edges, jnp.zeros(5, jnp.int32), jnp.int32(0)),
        gradients="stopped",
    )
    assert "the kernel take_hooks was called with parent of int32 (4, 4); it must be int32 (5, 2)." in message


def test_labels_over_devices_name_the_first_row_of_each_group() -> None:
    label = jnp.asarray([0, 0, 2, 2, 4, 0, 9], jnp.int32)  # five own rows, the last of which does not count, and ghosts
    nothing = [7, 7]  # the unwritten parent of a vertex that is not hooked
    parent = jnp.asarray([[0, 3], nothing, nothing, nothing, [0, 0]], jnp.int32)
    forest = parent, jnp.asarray([0, 9, 9, 9, 9], jnp.int32), jnp.int32(1)
    ranks, rows = kernels.own_labels(label, forest, 4, 1)
    np.testing.assert_array_equal(ranks, [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(rows, [3, 3, 2, 2, 4])
    joined = kernels.own_joined_labels(label, forest, 4, 1, jnp.asarray([0, 100], jnp.int32))
    np.testing.assert_array_equal(joined, [3, 3, 102, 102, 104])
    empty = tuple(part[:0] for part in forest[:2])
    assert kernels.own_labels(label[:0], (*empty, jnp.int32(0)), 0, 0)[1].shape == (0,)
    gpus.skip_where_kernels_cannot_raise()
    with pytest.raises(oracles.RUN_TIME_ERROR, match="invalid row index in label"):
        jax.block_until_ready(kernels.own_labels(label.at[1].set(5), forest, 4, 1))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="invalid row index in hooked"):
        jax.block_until_ready(kernels.own_labels(label, (parent, forest[1], jnp.int32(2)), 4, 1))


@pytest.mark.parametrize("hooked", [0, 3, 2000])
def test_many_labels_name_the_first_row_of_each_group(hooked: int) -> None:
    n, num, rng = 50_000, 49_123, np.random.default_rng(hooked)
    label = np.arange(n + 100, dtype=np.int32)
    label[:num] = np.maximum(label[:num] - rng.integers(0, 40, num), 0)
    rows = rng.permutation(num)[:hooked]
    parent = np.full((n, 2), -(2**30), np.int32)
    parent[rows] = np.stack([rng.integers(0, 3, hooked), rng.integers(0, n, hooked)], axis=-1)
    expected = np.stack([np.full(n, 2), label[:n]], axis=-1)
    expected[:num] = np.where(np.isin(label[:num, None], rows), parent[label[:num]], expected[:num])
    forest = parent, np.resize(rows, n).astype(np.int32) if hooked else np.full(n, n, np.int32), hooked
    forest = tuple(jnp.asarray(part, jnp.int32) for part in forest)
    np.testing.assert_array_equal(np.stack(kernels.own_labels(label, forest, num, 2), axis=-1), expected)
    starts = np.array([0, 60_000, 130_000], np.int32)
    joined = kernels.own_joined_labels(label, forest, num, 2, starts)
    np.testing.assert_array_equal(joined, starts[expected[:, 0]] + expected[:, 1])


def test_forest_contains_vertices_requested_by_other_ranks() -> None:
    label = jnp.asarray([0, 0, 2, 2, 4, 5, 6, 1], jnp.int32)  # seven own rows, and a ghost
    order = jnp.asarray([1, 3, *range(7), 5, 8], jnp.int32)  # to rank 0, to itself, and to rank 2; then nothing
    edges = jnp.asarray([[1, 4, 2, 0], [9, 9, 9, 9]], jnp.int32)

    def begin(sent: list[int], label: jax.Array = label) -> kernels.Forest:
        return kernels.begin_forest(label, order, jnp.asarray(sent, jnp.int32), 1, edges, 1, 7)

    parent, hooked, number = begin([2, 7, 1])
    assert (parent.shape, hooked.shape, int(number)) == ((7, 2), (7,), 0)
    for row in (0, 2, 4, 5):
        np.testing.assert_array_equal(parent[row], [1, row])
    gpus.skip_where_kernels_cannot_raise()
    for wrong, message in (
        (lambda: begin([2, 7, 3]), "sent counts more rows than order lists"),
        (lambda: begin([2, 7, 2]), "invalid row index in order"),
        (lambda: begin([2, 7, 1], label.at[1].set(7)), "invalid vertex in label or edges"),
    ):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=message):
            jax.block_until_ready(wrong())


def test_missing_kernel_attribute_is_named() -> None:
    pos, corner = jnp.zeros((7, 3)), jnp.zeros(3)
    arguments = (pos, kernels.as_num(7), pos, corner, corner, exact(0, (3,)).words)
    message = call_wrongly("search", _call.i32(7), *arguments, gradients="stopped")
    assert "a kernel was called without the attribute right." in message


def test_both_backends_provide_every_kernel() -> None:
    package = Path(kernels.__file__).parents[1]
    defined, called = {}, set()
    for kind in ("cc", "cu"):
        result = [
            re.findall(r"^JZTREE_\w*KERNEL\((\w+),", path.read_text(), re.M) for path in SOURCES.rglob(f"*.{kind}")
        ]
        defined[kind] = sorted(name for names in result for name in names)
    for path in (package / "kernels").glob("*.py"):
        called |= set(re.findall(r"\bcall\(\s*\"(\w+)\"", path.read_text()))
    library = ctypes.CDLL(kernels.native_info()["cpu_library"])
    library.jztree_kernels.restype = ctypes.c_char_p
    registered = sorted(library.jztree_kernels().decode().split(",")[:-1])
    for where, names in {
        "a .cu file of jztree/native": defined["cu"],
        "the compiled library (run make develop)": registered,
        "a function of jztree/kernels": sorted(called),
    }.items():
        differing = sorted(set(defined["cc"]) ^ set(names))
        assert names == defined["cc"], f"{differing} must be both in a .cc file of jztree/native and in {where}"
