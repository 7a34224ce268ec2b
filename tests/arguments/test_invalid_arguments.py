"""Each public function refuses invalid values of each argument, with one sentence that names the argument."""

import dataclasses
import inspect
from typing import Any

import jax
import numpy as np
import oracles
import pytest
from public_calls import CALLS, ROWS, particles

from jztree.data import ParticleData

pytestmark = [pytest.mark.emulated, pytest.mark.fast]

NAN, INF = np.nan, np.inf
LENGTHS = [-0.1, NAN, -INF, "far", 1j, [0.2, 0.1], [[0.1, 0.2]]]
INTEGERS = [-3, 2.0, "3", True, np.array([2])]
COUNTS = [*INTEGERS, 0]
WORDS = ["unknown", 3, np.zeros(2)]
BOXES = [-1.0, NAN, INF, "1", 1j, [1.0, 1.0], [1.0, -1.0, 0.0], [[1.0, 1.0, 1.0]], [1.0, None, INF]]
# Names of arguments, and values that no function accepts for them.
_INVALID: list[tuple[str, list[Any]]] = [
    ("boxsize", BOXES),
    ("cfg cfg_tree", ["cfg", 3, dict]),
    ("radius max_radius", LENGTHS),
    ("rlink vlink group_rlink eps softening attach_within hubble", [*LENGTHS, INF]),
    ("h query_h gravity scale_factor", [*LENGTHS, INF, 0.0]),
    ("error", [*LENGTHS, INF, 0.0, 0.5]),
    ("tolerance", [*LENGTHS, 1.0]),
    ("density", [-0.1, NAN, INF, "far", 1j, [[0.1, 0.2]], 0.0]),
    ("capacity num_subhaloes", [*INTEGERS, 2**31]),
    ("k core_k min_samples max_neighbours num_types min_bound npart_min", COUNTS),
    ("group_rows num_regions neighbours", [*COUNTS, 2**31]),
    ("kernel derivative form how mode", WORDS),
    ("order output_order side candidates", [*WORDS, None]),
    ("los", ["unknown", 3, 1.5, np.zeros(2)]),
    ("exclude_self allow_missing nearest_first full separations", ["yes", 2, None, np.zeros(2, bool)]),
    ("bias_correction linearize_labels equalize kahan_summation", ["yes", 2, None, np.zeros(2, bool)]),
    ("truncate", [0.5, 13, NAN, "far", True, None]),
    ("edges edges_b", [[], 0.1, [0.2, 0.1], [0.1, NAN], ["a", "b"]]),
    ("radii", [[], [-0.1, 0.1], [0.1, NAN], ["a"], [[0.1, 0.2]]]),
    ("weights masses internal_energy", [np.ones(3, np.float32), np.ones(ROWS, complex), ["a"] * ROWS]),
    ("batch groups regions types", [np.zeros(3, int), np.zeros(ROWS)]),
    ("source_mask", [np.ones(3, bool), np.ones(ROWS)]),
]
INVALID = {name: values for names, values in _INVALID for name in names.split()}
DTYPES = [np.int32, np.complex64, np.float16, bool]
SHAPES: list[tuple[tuple[int, ...], str]] = [  # after the number of rows, and in the message
    ((), r"\({},\)"),
    ((3, 3), r"\({}, 3, 3\)|\({}, 3\)"),
    ((9,), r"1 to [348].*\({}, 9\)|dimension"),
    ((0,), r"\({}, 0\)|dimension"),
]
# Functions of columns without positions.
NO_POSITIONS = ("data.", "links.", "halos.", "hierarchy.cut", "hierarchy.dendrogram", "mst.squeeze_tree")
ALLOW_NAN = {"tree.zsort", "tree.search_sorted_z", "fof.fof_labels, th"}  # such rows come last in z-order
SEARCHES = [name for name in CALLS if not name.startswith(NO_POSITIONS)]


def twin_of(name: str, twin: str) -> tuple[Any, dict[str, Any]]:
    """Return a function or its compiled twin, if it has one, and the arguments of a call."""
    function, arguments = CALLS[name](particles())
    return (getattr(function, "jit", function) if twin == "jit" else function), arguments


def sets_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that are classes of particles."""
    return {name: value for name, value in arguments.items() if isinstance(value, ParticleData)}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("twin", ["plain", "jit"])
def test_invalid_value_of_an_argument_raises_an_error_that_names_it(name: str, twin: str) -> None:
    function, arguments = twin_of(name, twin)
    columns = {"radius", "density"} if name.startswith("halos.") else set()
    for argument in (inspect.signature(function).parameters.keys() & INVALID.keys()) - columns:
        for value in INVALID[argument]:
            with pytest.raises((TypeError, *oracles.RUN_TIME_ERROR), match=argument) as error:
                jax.block_until_ready(function(**arguments | {argument: value}))
            assert oracles.one_sentence(error), f"{argument}={value}: {error.value}"


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("twin", ["plain", "jit"])
def test_positions_of_wrong_type_or_shape_raise(name: str, twin: str) -> None:
    function, arguments = twin_of(name, twin)

    def assert_raises(kind: type[Exception], words: str, **changes: Any) -> None:
        with pytest.raises(kind, match=words) as error:
            jax.block_until_ready(function(**arguments | changes))
        assert oracles.one_sentence(error), f"{words}: {error.value}"

    for argument, part in sets_of(arguments).items():
        n = len(part.pos)
        for dtype in DTYPES:
            wrong = dataclasses.replace(part, pos=np.zeros((n, 3), dtype))
            assert_raises(TypeError, np.dtype(dtype).name, **{argument: wrong})
        for shape, words in SHAPES:
            wrong = dataclasses.replace(part, pos=np.zeros((n, *shape), np.float32))
            assert_raises(ValueError, words.replace("{}", str(n)), **{argument: wrong})


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("name", [name for name in SEARCHES if name not in ALLOW_NAN])
def test_position_that_is_not_finite_names_the_row(name: str, bad: float) -> None:
    call = CALLS[name](particles())
    for argument, part in sets_of(call.arguments).items():
        row = len(part.pos) // 2
        wrong = dataclasses.replace(part, pos=part.pos.at[row, 1].set(bad))
        with pytest.raises(oracles.RUN_TIME_ERROR, match=f"row {row} ") as error:
            jax.block_until_ready(call.function(**call.arguments | {argument: wrong}))
        assert oracles.one_sentence(error)
