"""JAX modes of user programs: every public function gives its results and derivatives in each mode.

`jax_numpy_dtype_promotion` and `jax_numpy_rank_promotion` forbid implicit promotions, tested in 32 and 64 bits.
`jax_debug_nans` raises at each NaN. `jax_disable_jit` runs operations one by one.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from jax.sharding import PartitionSpec as P
from public_calls import CALLS, NOT_DIFFERENTIABLE, NUM, ON_HOST, ONE_DEVICE, ROWS, missing, particles

import jztree as jz
from jztree import data, halos
from jztree.comm import _ranks
from jztree.config import CatalogueConfig, FofConfig
from jztree.data import ParticleData
from jztree.jax_ext import Exact, exact_to_float
from jztree.kernels import _run
from jztree.radius import WideSums
from jztree.tree import ghosts

SMALL = FofConfig(catalogue=CatalogueConfig(npart_min=2))


class Mode(NamedTuple):
    """JAX options, and the dtype of the particles. strict: no implicit promotion of dtypes or ranks."""

    strict: bool = False
    wide: bool = False
    dtype: Any = np.float32
    nans: bool = False
    without_jit: bool = False

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(jax.enable_x64(self.wide))
            if self.strict:
                stack.enter_context(jax.numpy_rank_promotion("raise"))
                stack.enter_context(jax.numpy_dtype_promotion("strict"))
            stack.enter_context(jax.debug_nans(self.nans))
            stack.enter_context(jax.disable_jit(self.without_jit))
            yield


STRICT = {
    "strict, 32 bits": Mode(strict=True),
    "strict, 64 bits": Mode(strict=True, wide=True),
    "strict, float64": Mode(strict=True, wide=True, dtype=np.float64),
}
RUN = {"debug_nans": Mode(nans=True), "disable_jit": Mode(without_jit=True)}
FLOAT32 = {name: mode for name, mode in (STRICT | RUN).items() if mode.dtype == np.float32}
each = pytest.mark.parametrize("name", CALLS)
in_strict_modes = pytest.mark.parametrize("mode", STRICT.values(), ids=STRICT)


def test_every_public_function_is_called() -> None:
    assert not missing(), f"add calls of {sorted(missing())} to tests/public_calls.py"
    assert not (ON_HOST | ONE_DEVICE | NOT_DIFFERENTIABLE) - set(CALLS)


@functools.cache
def answer(name: str, mode: Mode) -> list[np.ndarray]:
    """Return the arrays of a call in a mode."""
    with mode.on():
        result = CALLS[name](particles(mode.dtype))()
        # The words of sums and of exact numbers depend on the mode, but their values do not.
        leaves = jax.tree.leaves(result, is_leaf=lambda leaf: isinstance(leaf, (WideSums, Exact)))
        return [np.asarray(exact_to_float(leaf) if isinstance(leaf, Exact) else leaf) for leaf in leaves]


@pytest.mark.long
@each
@pytest.mark.parametrize("mode", FLOAT32.values(), ids=FLOAT32)
def test_results_are_equal_in_every_mode(mode: Mode, name: str) -> None:
    for value, reference in zip(answer(name, mode), answer(name, Mode()), strict=True):
        # Rounding depends on which operations XLA compiles together, and on which are float64 internally.
        np.testing.assert_allclose(value, reference, rtol=1e-5, atol=1e-5)


def total(rows: dict[str, jax.Array], part: ParticleData, name: str) -> jax.Array:
    """Return the sum of the finite real numbers in the result of a call for particles with ``rows``."""
    result = CALLS[name](dataclasses.replace(part, **rows))()
    arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
    real = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.floating)]
    finite = [jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros((), leaf.dtype)).astype(part.pos.dtype) for leaf in real]
    return sum(map(jnp.sum, finite), jnp.zeros((), part.pos.dtype))


def gradient(name: str, mode: Mode, known: bool) -> dict[str, Any]:
    """Return the derivatives of `total` by positions, masses and velocities; only shapes unless ``known``."""
    with mode.on():
        part = particles(mode.dtype)
        rows = {"pos": part.pos, "mass": part.mass, "vel": part.vel}
        derivatives = jax.grad(functools.partial(total, part=part, name=name))
        result: dict[str, Any] = derivatives(rows) if known else jax.eval_shape(derivatives, rows)
        return jax.block_until_ready(result)


def check_gradient(name: str, mode: Mode, known: bool) -> None:
    if name in NOT_DIFFERENTIABLE:
        with pytest.raises(ValueError, match="has no derivative"):
            gradient(name, mode, known)
        return
    for leaf in gradient(name, mode, known).values():
        assert leaf.dtype == mode.dtype
        assert not known or np.isfinite(leaf).all()


@pytest.mark.long
@each
@pytest.mark.parametrize("mode", RUN.values(), ids=RUN)
def test_derivatives_are_finite(mode: Mode, name: str) -> None:
    check_gradient(name, mode, known=True)


@each
@in_strict_modes
def test_derivatives_are_traced(mode: Mode, name: str) -> None:
    check_gradient(name, mode, known=name in ON_HOST)


@pytest.mark.parametrize("name", sorted(set(CALLS) - ON_HOST))
def test_known_arrays_with_traced_positions(name: str) -> None:
    """Operations on them are also traced, so the library must not use their values."""
    part = particles()
    known = {key: jnp.asarray(argument) for key, argument in CALLS[name](part).arguments.items() if _is_given(argument)}

    def found(pos: jax.Array) -> Any:
        call = CALLS[name](dataclasses.replace(part, pos=pos))
        return call._replace(arguments=call.arguments | known)()

    assert jax.tree.leaves(jax.eval_shape(found, part.pos))


def _is_given(value: Any) -> bool:
    """Return whether an argument is a real number, or a list of numbers."""
    return isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], (int, float)))


def test_kernels_with_work_arrays_run_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPUs, these kernels are separate JAX primitives."""
    monkeypatch.setattr(_run, "_takes_scratch", lambda: True)
    with jax.disable_jit():
        result = jz.radius.count_within(particles(), 0.2, boxsize=1.0)
    np.testing.assert_array_equal(result, jz.radius.count_within(particles(), 0.2, boxsize=1.0))


# Over several devices


@each
@pytest.mark.parametrize("are_many", [False, True], ids=["few", "as many"])
@in_strict_modes
def test_results_are_traced_over_devices(
    mode: Mode, name: str, are_many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in ON_HOST:
        pytest.skip("runs on the host")
    if are_many:  # use the exchange of rows and boxes for thousands of ranks
        monkeypatch.setattr(_ranks, "_FEW_RANKS", 1)
        monkeypatch.setattr(ghosts, "_FEW_REQUESTS", 0)
    mesh, specs = mesh_of(2), {"in_specs": P("gpus"), "out_specs": P("gpus")}

    def local(part: Any) -> Any:
        result = CALLS[name](jax.tree.map(lambda leaf: leaf[0], part))()
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], result)

    with mode.on():
        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), particles(mode.dtype))
        mapped = jax.shard_map(local, mesh=mesh, check_vma=False, **specs)
        if name in ONE_DEVICE:
            with pytest.raises(NotImplementedError, match="supports one device, but it was mapped over 2"):
                jax.eval_shape(mapped, stacked)
            return
        assert jax.tree.leaves(jax.eval_shape(mapped, stacked))


# Numbers of several kinds under strict promotion


@in_strict_modes
def test_masses_may_be_integers(mode: Mode) -> None:
    names = "fof.fof_and_catalogue", "density.knn_density", "density.sph_density", "overdensity.spherical_overdensity"
    with mode.on():
        part = dataclasses.replace(particles(mode.dtype), mass=jnp.ones(ROWS, jnp.int32))
        for name in (*names, "tree.zsort_and_tree"):
            assert jax.tree.leaves(jax.eval_shape(lambda part, name=name: CALLS[name](part)(), part)), name


def test_float64_keeps_its_precision() -> None:
    """A factor rounded to float32 would change the ninth digit."""
    with STRICT["strict, float64"].on():
        random = np.random.default_rng(3)
        part = ParticleData(pos=oracles.uniform(60, 3, np.float64), vel=random.random((60, 3)), num=60)
        cata = jz.fof.fof_and_catalogue.jit(part, 0.5, cfg=SMALL)[1]
        total = halos.total_vel_dispersion(cata)
        assert total.dtype == np.float64
        np.testing.assert_allclose(total, np.asarray(cata.vel_dispersion) * np.sqrt(3.0), rtol=1e-14)


@pytest.mark.slow
@in_strict_modes
def test_catalogues_of_devices_are_joined_on_the_host(mode: Mode) -> None:
    with mode.on():
        part = particles(mode.dtype)
        assert int(data.flatten_particles(data.expand_particles(part, 4, 2)).num) == NUM
        _, cata = jz.fof.fof_and_catalogue.jit(part, 0.2, 1.0, cfg=SMALL)
        stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], cata)
        single, complete = (halos.principal_axes(catalogues) for catalogues in (cata, stacked))
        jax.tree.map(np.testing.assert_array_equal, complete, jax.tree.map(lambda leaf: leaf[None], single))
        squeezed = data.sort_catalogue(data.squeeze_catalogue(cata, offset_mode="global", nparts=NUM))
        assert squeezed.ngroups == int(cata.ngroups)
        np.testing.assert_array_equal(
            halos.spin(stacked, stacked.mass, stacked.max_radius, 43.0)[0],
            halos.spin(cata, cata.mass, cata.max_radius, 43.0),
        )


def test_masses_of_another_precision_than_positions(x64: None) -> None:
    random = np.random.default_rng(3)
    part = jz.data.PosMass(pos=random.random((60, 3), np.float32), mass=random.random(60))
    expected = [density(part, 6) for density in (jz.density.knn_density, jz.density.sph_density)]
    with jax.numpy_dtype_promotion("strict"):
        result = [density(part, 6) for density in (jz.density.knn_density, jz.density.sph_density)]
    for value, reference in zip(result, expected, strict=True):
        np.testing.assert_array_equal(value, reference)


def test_sets_of_two_precisions_raise_and_suggest_the_cast(x64: None) -> None:
    pos = oracles.uniform(20, 3)
    with pytest.raises(
        ValueError, match=r"queries are float64, but part is float32.*queries with \.astype\('float32'\)"
    ):
        jz.radius.pair_counts(pos, [0.0, 0.1], queries=pos.astype(np.float64))
