"""64-bit JAX arrays, made with `jax_enable_x64`, raise in 32-bit mode, in which JAX would round or truncate them."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import mesh_of
from public_calls import CALLS, ON_HOST, Call, particles

TOO_WIDE = (
    r"is a JAX array of (float|int)64, but JAX is in 32-bit mode; switch on 64-bit mode .* with "
    r".astype\('(float|int)32'\)"
)
# Arguments that are float64 in both modes, unless they are traced.
EXACT = {
    *("attach_within", "boxsize", "edges", "edges_b", "eps", "gravity", "h", "query_h", "max_radius", "radii", "rlink"),
    *("group_rlink", "vlink"),
    *("scale_factor", "softening"),
}
# These functions move rows and compute nothing, so that arrays keep their types.
MOVES = {
    *("data.flatten_particles", "data.get_num", "data.get_num, rows of NaN", "data.get_num_total", "data.get_pos"),
    *("data.get_pos_mass", "data.map_rows", "data.pad_particles", "data.replace_num", "data.squeeze_any"),
    *("data.squeeze_catalogue", "data.squeeze_particles"),
}
COMPUTES = sorted(set(CALLS) - MOVES)


def wide(leaf: Any) -> Any:
    """Return a 64-bit JAX array of the same numbers; None if the leaf cannot be converted."""
    numbers = np.asarray(leaf)
    if numbers.dtype.kind not in "if" or isinstance(leaf, int):
        return None
    with jax.enable_x64(True):
        return jnp.asarray(
            numbers.astype("float64" if numbers.dtype.kind == "f" or isinstance(leaf, list) else "int64")
        )


def wide_calls(call: Call) -> Iterator[tuple[str, Call]]:
    """Yield the call with one number or array at a time converted to 64 bits, and the name of its argument."""
    leaves, structure = jax.tree.flatten_with_path(call.arguments, is_leaf=_is_numbers)
    for i, (path, leaf) in enumerate(leaves):
        if callable(leaf) or isinstance(leaf, str) or (array := wide(leaf)) is None:
            continue
        given = [array if i == j else second for j, (_, second) in enumerate(leaves)]
        yield path[0].key, call._replace(arguments=jax.tree.unflatten(structure, given))


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and isinstance(value[0], (int, float))


def is_exact(name: str, argument: str) -> bool:
    function = name.partition(",")[0]
    if argument == "radius":
        return function.startswith("radius.")
    return argument in EXACT or (argument == "density" and function == "overdensity.spherical_overdensity")


def check(call: Call, exact: bool) -> None:
    """Check that it raises, or, if the argument is exact, returns the same result as with numbers."""
    if not exact:
        with pytest.raises(TypeError, match=TOO_WIDE):
            call()
        return
    for leaf in jax.tree.leaves(call()):
        assert not hasattr(leaf, "dtype") or leaf.dtype.itemsize <= 4


@pytest.mark.parametrize("name", COMPUTES)
def test_wide_arrays_raise(name: str) -> None:
    for argument, call in wide_calls(CALLS[name](particles())):
        check(call, is_exact(name, argument))


@pytest.mark.parametrize("way", ["jit", "smap"])
@pytest.mark.parametrize("name", [name for name in CALLS if not name.startswith("data.")])
def test_wide_arrays_raise_in_jit_and_smap(name: str, way: str) -> None:
    called = CALLS[name](particles())
    if not hasattr(called.function, way):
        pytest.skip(f"has no {way}")
    twin = called.function.jit if way == "jit" else called.function.smap(mesh_of(1), jit=True)
    for argument, call in wide_calls(called):
        if not is_exact(name, argument):
            check(call._replace(function=twin), exact=False)


@pytest.mark.parametrize("name", sorted(MOVES))
def test_wide_arrays_keep_their_dtype_and_values(name: str) -> None:
    for _, call in wide_calls(CALLS[name](particles())):
        result = call()
        with jax.enable_x64(True):
            expected = call()
        for value, reference in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            assert np.asarray(value).dtype == np.asarray(reference).dtype
            np.testing.assert_array_equal(value, reference)


@pytest.mark.parametrize("name", [name for name in COMPUTES if name not in ON_HOST])
def test_wide_arrays_raise_if_traced(name: str) -> None:
    for _, call in wide_calls(CALLS[name](particles())):
        arrays = {key: value for key, value in call.arguments.items() if not _is_static(value)}

        def traced(arrays: Any, call: Call = call) -> Any:
            return call._replace(arguments=call.arguments | arrays)()

        with pytest.raises(TypeError, match=TOO_WIDE):
            jax.jit(traced).lower(arrays)


def _is_static(value: Any) -> bool:
    return any(not isinstance(leaf, (jax.Array, float)) for leaf in jax.tree.leaves(value))
