"""Sums over kernels against their definitions in float64 NumPy, and derivatives against finite differences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, SETS, deal, even, joined, make, mesh_of, uneven
from oracles import KernelSum, assert_near

from jztree import build_index
from jztree.config import RadiusConfig, TreeConfig
from jztree.data import Pos, PosMass
from jztree.density import smoothing_length, sph_density
from jztree.radius import count_within, kernel_sums

pytestmark = pytest.mark.emulated

FORMS = ("gather", "scatter", "mean_kernel", "mean_h")
SPH = ("cubic_spline", "wendland_c2", "wendland_c4", "wendland_c6")


@pytest.mark.parametrize("dims", [pytest.param(d, marks=pytest.mark.slow if 3 < d < 8 else ()) for d in range(1, 9)])
@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
def test_equals_brute_force(dims: int, kind: str) -> None:
    box, rng = oracles.box_lengths(kind, dims), np.random.default_rng(dims)
    pos, query = oracles.uniform(500, dims), oracles.uniform(60, dims, seed=4) * 1.4 - 0.2
    h, h_query = rng.uniform(0.05, 0.3, 500) * dims, rng.uniform(0.05, 0.3, 60) * dims
    v = rng.normal(size=(500, 2))
    for form in FORMS:
        for kernel in ("gaussian", "top_hat", *(SPH if dims <= 3 else ())):
            # For float32 positions, float64 distances decide the side of a jump.
            result = kernel_sums(pos, h, boxsize=box, values=v.astype(np.float32), kernel=kernel, form=form)
            assert_near(result, KernelSum(kernel, form, box)(pos, pos, h, h, v.astype(np.float32)), 2e-6)
        result = kernel_sums.jit(
            pos, h, boxsize=box, queries=query, query_h=h_query, values=v, kernel="gaussian", form=form
        )
        assert_near(result, KernelSum("gaussian", form, box)(query, pos, h, h_query, v), 2e-6)
    with jax.enable_x64(True):
        wide = pos.astype(np.float64)
        for kernel in ("gaussian", *(SPH if dims <= 3 else ())):
            result = kernel_sums(wide, h, boxsize=box, values=v, kernel=kernel)
            assert_near(result, KernelSum(kernel, "gather", box)(wide, wide, h, h, v), 1e-13)


@pytest.mark.watched
@pytest.mark.parametrize("box", [None, 1.0])
def test_top_hat_sums_are_counts(box: Any) -> None:
    """Over the ball's volume, the sums are the same integers, also for ties."""
    pos = oracles.lattice(9, 3, spacing=0.1)
    for radius in (0.1, np.float32(0.1), 0.1 * np.sqrt(3), 0.30000001, 0.7):
        result = kernel_sums(pos, radius, boxsize=box, kernel="top_hat") * (4 / 3 * np.pi * radius**3)
        np.testing.assert_array_equal(np.rint(result), count_within(pos, radius, boxsize=box))
        each = np.full(len(pos), radius, np.float64)
        for form in FORMS:
            again = kernel_sums(pos, each, boxsize=box, kernel="top_hat", form=form)
            np.testing.assert_allclose(again * (4 / 3 * np.pi * radius**3), result, rtol=1e-5)


@pytest.mark.long
def test_sph_density() -> None:
    """Compare with `sph_density` for k neighbours, within the distance to the last."""
    pos, mass = oracles.clustered(3_000, 3), oracles.uniform(3_000, 1)[:, 0]
    part = PosMass(pos=pos, mass=mass)
    h = smoothing_length.jit(part, 40)
    for kernel in SPH:
        expected = sph_density.jit(part, 40, kernel=kernel)
        np.testing.assert_allclose(kernel_sums.jit(part, h, kernel=kernel), expected, rtol=1e-5)


@pytest.mark.aarch64
@pytest.mark.core
@pytest.mark.long
def test_values_of_any_shape() -> None:
    pos, v = oracles.uniform(300, 3), oracles.uniform(300, 12).reshape(300, 3, 2, 2)
    result = kernel_sums(pos, 0.3, values=v)
    assert result.shape == (300, 3, 2, 2)
    assert_near(result, KernelSum("cubic_spline", "gather", None)(pos, pos, 0.3, 0.3, v), 2e-6)
    assert kernel_sums(pos, 0.3, values=v[:, :, :0]).shape == (300, 3, 0, 2)
    assert_near(
        kernel_sums(pos, 0.3, values=np.arange(300)),
        KernelSum(SPH[0], "gather", None)(pos, pos, 0.3, 0.3, np.arange(300)),
        2e-6,
    )
    assert_near(kernel_sums(PosMass(pos=pos, mass=2.5), 0.3), 2.5 * kernel_sums(pos, 0.3), 1e-6)
    gradient = kernel_sums(pos, 0.3, values=v, derivative="gradient")
    assert gradient.shape == (300, 3, 2, 2, 3)
    vectors = v.reshape(300, 4, 3)
    by = np.asarray(kernel_sums(pos, 0.3, values=vectors, derivative="gradient"))
    assert_near(kernel_sums(pos, 0.3, values=vectors, derivative="divergence"), np.einsum("ncdd->nc", by), 1e-5)
    curl = np.stack([by[..., j, i] - by[..., i, j] for i, j in ((1, 2), (2, 0), (0, 1))], axis=-1)
    assert_near(kernel_sums(pos, 0.3, values=vectors, derivative="curl"), curl, 1e-5)
    flat = oracles.uniform(200, 2)
    by = np.asarray(kernel_sums(flat, 0.3, values=flat, derivative="gradient"))
    assert_near(kernel_sums(flat, 0.3, values=flat, derivative="curl"), by[:, 1, 0] - by[:, 0, 1], 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("n", [0, 1, 2, 33])
def test_any_number_of_particles_and_queries(n: int) -> None:
    pos = oracles.uniform(n, 3)
    for form in FORMS:
        assert_near(
            kernel_sums(pos, np.full(n, 0.4), form=form),
            KernelSum(SPH[0], form, None)(pos, pos, 0.4, 0.4, np.ones(n)),
            1e-6,
        )
        for q in (0, 1, 5):
            query = oracles.uniform(q, 3, seed=3)
            result = kernel_sums(pos, 0.4, queries=query, form=form)
            assert_near(result, KernelSum(SPH[0], form, None)(query, pos, 0.4, 0.4, np.ones(n)), 1e-6)
    padded = np.full((n + 5, 3), np.nan, np.float32)
    padded[:n] = pos
    h, v = np.full(n + 5, -1.0), np.full(n + 5, np.inf)
    h[:n], v[:n] = 0.4, 2
    result = kernel_sums.jit(Pos(pos=padded, num=n), h, values=v.astype(np.float32), form="mean_h")
    assert_near(result[:n], 2 * kernel_sums(pos, 0.4), 1e-6)
    np.testing.assert_array_equal(result[n:], 0)


@pytest.mark.watched
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e30])
def test_any_unit_of_length(scale: float) -> None:
    pos = (oracles.uniform(600, 3) * np.float32(scale)).astype(np.float32)
    pos[0] += np.float32(scale * 1e5)
    with jax.enable_x64(True):
        v = np.full(600, 2e43)  # grams
        weak = kernel_sums(PosMass(pos=pos, mass=jnp.full(600, 2e43)), 0.2 * scale)
        assert_near(weak, kernel_sums(pos, 0.2 * scale, values=v), 1e-12)
        for h in (0.2 * scale, 1e-5 * scale, 3e5 * scale):
            assert_near(kernel_sums(pos, h, values=v), KernelSum(SPH[0], "gather", None)(pos, pos, h, h, v), 5e-6)


def test_neighbours_far_closer_than_the_set_is_wide() -> None:
    pos = np.r_[oracles.uniform(300, 3) * np.float32(1e-28), [[1e3, 0, 0]]].astype(np.float32)
    h = np.full(301, 3e-29)
    with jax.enable_x64(True):
        for form in FORMS:
            result = kernel_sums(pos, h, values=np.ones(301), form=form)
            assert_near(result, KernelSum(SPH[0], form, None)(pos, pos, h, h, np.ones(301)), 5e-6)


@pytest.mark.parametrize("form", FORMS)
def test_smoothing_lengths_over_many_orders_of_magnitude(form: str) -> None:
    """Powers of their ratios are far out of the range of float32, but no sum may be lost."""
    pos, query = oracles.uniform(300, 6), oracles.uniform(40, 6, seed=4)
    h, h_query = np.logspace(-11, 2, 300), np.logspace(-12, 1, 40)
    result = kernel_sums.jit(pos, h, queries=query, query_h=h_query, kernel="gaussian", form=form)
    expected = KernelSum("gaussian", form)(query, pos, h, h_query, np.ones(300))
    assert (expected > 0).any()
    np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_smoothing_length_with_powers_outside_float64() -> None:
    """Such a length reaches no neighbour, and must not affect other particles in its block."""
    pos, h = oracles.uniform(100, 8), np.full(100, 0.9)
    query, tiny = oracles.uniform(20, 8, seed=4), np.where(np.arange(100) == 7, 1e-37, h)
    options = {"kernel": "gaussian", "form": "scatter", "derivative": "gradient"}
    result = kernel_sums.jit(pos, tiny, queries=query, **options)
    assert_near(result, kernel_sums.jit(np.delete(pos, 7, axis=0), 0.9, queries=query, **options), 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_smoothing_lengths_below_the_rounding_of_the_box(form: str) -> None:
    """Particles whose leaf ends within a block count once, and padding does not count."""
    pos, h = np.full((60, 3), 1.3, np.float32), np.full(60, 1e-8)
    result = np.asarray(kernel_sums.jit(pos, h, boxsize=1.0, kernel="top_hat", form=form)) * (4 / 3 * np.pi * 1e-24)
    np.testing.assert_allclose(result, 60, rtol=1e-5)
    slopes = kernel_sums.jit(pos, h, boxsize=1.0, kernel="gaussian", form=form, derivative="gradient")
    np.testing.assert_array_equal(slopes, 0)


@pytest.mark.parametrize("form", FORMS)
def test_images_closer_than_the_rounding_of_positions(form: str) -> None:
    """The given positions decide who is within, however many digits are lost when they are wrapped into the box."""
    separation, rng = 4e-10, np.random.default_rng(2)
    a, b = (rng.uniform(lo, lo + 1, 100_000).astype(np.float32).astype(np.float64) for lo in (1, -2))
    box = (a - b + separation) / 4  # so that many places in the box are half-way between two float32 numbers
    # Choose pairs in which one is rounded up and the other down.
    far = [place.astype(np.float32) for place in (a - box * np.floor(a / box), b - box * np.floor(b / box))]
    selected = np.flatnonzero((np.abs(far[0] - far[1]) < 1e-6) & (np.abs(far[0] - far[1]) > 5e-8))[:4]
    assert len(selected) == 4
    for i in selected:
        _counts_two(np.float32([[a[i]], [b[i]]]), box[i], (0.9 * separation, 1.1 * separation), form)
    # Wrapping one position gives the other.
    pair = np.array([[1.3], [0.2]], np.float32)
    for separation in (3e-14, 3e-8):
        box = float(pair[0, 0]) - float(pair[1, 0]) + separation
        _counts_two(pair, box, (1e-26, 0.99 * separation, 1.01 * separation), form)


def _counts_two(pair: np.ndarray, box: float, lengths: tuple[float, ...], form: str) -> None:
    for h in lengths:
        with jax.enable_x64(True):
            result = kernel_sums.jit(pair, np.full(2, h), boxsize=box, values=np.ones(2), kernel="top_hat", form=form)
        expected = KernelSum("top_hat", form, box)(pair, pair, h, h, np.ones(2))
        np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.long
def test_coincident_points_and_lengths_above_the_box() -> None:
    pos = np.repeat(oracles.uniform(40, 3), 20, axis=0)
    for box in (None, 1.0):
        for h in (1e-3, 0.7, 40.0):
            for form in FORMS:
                result = kernel_sums.jit(pos, np.full(800, h), boxsize=box, form=form, derivative="gradient")
                assert np.isfinite(result).all()
                assert_near(
                    kernel_sums.jit(pos, h, boxsize=box, form=form),
                    KernelSum(SPH[0], form, box)(pos, pos, h, h, np.ones(800)),
                    1e-5,
                )


@pytest.mark.watched
@pytest.mark.long
def test_hierarchies_and_an_index() -> None:
    pos, h = oracles.clustered(2_000, 3), oracles.uniform(2_000, 1)[:, 0] * 0.1 + 0.01
    expected = KernelSum(SPH[0], "mean_h", None)(pos, pos, h, h, np.ones(2_000))
    for leaf_size in (2, 100):
        cfg = RadiusConfig(tree=TreeConfig(leaf_size=leaf_size, fan_out=2))
        assert_near(kernel_sums(pos, h, form="mean_h", cfg=cfg), expected, 1e-5)
    assert_near(kernel_sums.jit(build_index.jit(pos), h, form="mean_h"), expected, 1e-5)


# Over devices


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("form", ["gather", "mean_h"])
def test_sums_over_devices(ndev: int, form: str) -> None:
    mapped = kernel_sums.smap(mesh_of(ndev), jit=True)
    for name in SETS:
        pos, counts, stacked = make(name, ndev)
        rng = np.random.default_rng(4)
        h = SETS[name][2] * rng.uniform(0.3, 1.5, len(pos))
        spread = _dealt(h, counts, stacked.pos.shape[1])
        for box in (None, 1.0) if "outlier" not in name else (None,):
            result = joined(mapped(stacked, spread, boxsize=box, form=form), counts)
            assert_near(result, KernelSum(SPH[0], form, box)(pos, pos, h, h, np.ones(len(pos))), 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("form", FORMS)
def test_queries_over_devices(ndev: int, form: str) -> None:
    rng = np.random.default_rng(2)
    pos, query = oracles.clustered(1_000, 3), oracles.uniform(300, 3, seed=9)
    h, h_query, v = rng.uniform(0.02, 0.2, 1_000), rng.uniform(0.02, 0.2, 300), rng.normal(size=(1_000, 2))
    of_sources, of_queries = uneven(1_000, ndev), even(300, ndev)
    part, asking = deal(pos, of_sources), deal(query, of_queries, 300)
    mapped = kernel_sums.smap(mesh_of(ndev), jit=True)
    rows = part.pos.shape[1]
    spread, reach = _dealt(h, of_sources, rows), _dealt(h_query, of_queries, 300)
    values = _dealt(v.astype(np.float32), of_sources, rows)
    result = mapped(part, spread, boxsize=1.0, queries=asking, query_h=reach, values=values, form=form)
    assert_near(joined(result, of_queries), KernelSum(SPH[0], form, 1.0)(query, pos, h, h_query, v), 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_derivatives_over_devices(ndev: int) -> None:
    """Compare with the derivatives of one device."""
    pos, counts, stacked = make("clustered", ndev)
    rng = np.random.default_rng(4)
    h, v = rng.uniform(0.02, 0.2, len(pos)).astype(np.float32), rng.normal(size=len(pos)).astype(np.float32)
    u = rng.normal(size=len(pos)).astype(np.float32)
    rows = stacked.pos.shape[1]
    spread, values, required = (_dealt(column, counts, rows) for column in (h, v, u))
    mapped = kernel_sums.smap(mesh_of(ndev), jit=True)

    def everywhere(x: Any, h: Any, v: Any) -> jax.Array:
        return jnp.sum(required * mapped(Pos(pos=x, num=stacked.num), h, boxsize=1.0, values=v, form="mean_kernel"))

    def alone(x: Any, h: Any, v: Any) -> jax.Array:
        return jnp.sum(u * kernel_sums(x, h, boxsize=1.0, values=v, form="mean_kernel"))

    there = jax.jit(jax.grad(everywhere, (0, 1, 2)))(stacked.pos, spread, values)
    for result, expected in zip(there, jax.jit(jax.grad(alone, (0, 1, 2)))(pos, h, v), strict=True):
        assert_near(joined(result, counts), expected, 1e-5)


def _dealt(column: np.ndarray, counts: np.ndarray, rows: int) -> np.ndarray:
    """Distribute a property of particles as `deal` does. Padding rows hold invalid values."""
    out = np.full((len(counts), rows, *column.shape[1:]), -1, column.dtype)
    ends = np.cumsum(counts)
    for rank, (end, count) in enumerate(zip(ends, counts, strict=True)):
        out[rank, :count] = column[end - count : end]
    return out


# Invalid input


@pytest.mark.parametrize("call", [kernel_sums, kernel_sums.jit])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"h": np.ones(49)}, "its shape is"),
        ({"h": 0.1, "query_h": 0.1}, "queries"),
        ({"h": np.ones(50), "queries": np.zeros((3, 3), np.float32)}, "query_h"),
        ({"h": 0.1, "derivative": "curl"}, "vectors"),
        ({"h": 0.1, "derivative": "gradient", "kernel": "top_hat"}, "no gradient"),
        ({"h": 0.1, "values": np.ones(49)}, "one row per particle"),
        ({"h": 0.1, "values": np.ones(50) * 1j}, "real"),
        ({"h": 0.1, "values": [1.0] * 50}, "convert it with numpy.asarray"),
        ({"h": 0.1, "values": {"mass": np.ones(50)}}, "values is of the class dict; it must be one array"),
        ({"h": 0.1, "values": Pos(pos=np.ones((50, 3)))}, "values is of the class Pos; it must be one array"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], words: str, call: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call(oracles.uniform(50, 3), **arguments)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("call", [kernel_sums, kernel_sums.jit])
def test_values_of_64_bits_raise_no_warning(call: Any) -> None:
    """Accept them as positions and masses are accepted."""
    pos = oracles.uniform(50, 3)
    expected = call(pos, 0.3, values=np.arange(50, dtype=np.float32))
    for dtype in (np.int64, np.float64):
        np.testing.assert_array_equal(call(pos, 0.3, values=np.arange(50, dtype=dtype)), expected)


@pytest.mark.parametrize("separate", [False, True], ids=["self", "separate"])
@pytest.mark.parametrize("h", [0.0, -1.0, np.nan, np.inf, 0.01, -0.01])
def test_invalid_traced_smoothing_lengths_raise(h: float, separate: bool, dtype: Any) -> None:
    """The last two are in units of the smallest normal number: sums for such lengths were 0 at distance 0."""
    h = h * float(np.finfo(dtype).tiny) if 0 < abs(h) < 1 else h
    pos = np.full((3, 3), 6, dtype)
    queries = {"queries": pos[:1], "query_h": h} if separate else {}
    sums_of = jax.jit(kernel_sums)
    with pytest.raises(Exception, match="row 0 of h is not a valid smoothing length"):
        sums_of(pos, h, **queries).block_until_ready()


def test_invalid_smoothing_lengths_and_values_name_the_row() -> None:
    pos = oracles.uniform(50, 3)
    for bad in (0.0, -1.0, np.nan, np.inf, 1e-320):
        h = np.full(50, 0.2)
        h[7] = bad
        for given in (h, jnp.asarray(h)):
            with pytest.raises(Exception, match="row 7 of h is not a valid smoothing length"):
                kernel_sums.jit(pos, given).block_until_ready()
        kernel_sums.jit(Pos(pos=pos, num=7), h).block_until_ready()
    for bad in (np.nan, np.inf):
        v = np.ones(50)
        v[7] = bad
        with pytest.raises(Exception, match="row 7 has a value"):
            kernel_sums.jit(pos, 0.2, values=v).block_until_ready()
    with pytest.raises(Exception, match="outside the range"):
        kernel_sums.jit(pos, 1e-3, values=np.full(50, 1e37)).block_until_ready()
    with pytest.raises(Exception, match="below the range"):
        kernel_sums.jit(pos * np.float32(1e13), 1e12, values=np.full(50, 1e-5, np.float32)).block_until_ready()
    with pytest.raises(Exception, match="NaN or infinite"):
        kernel_sums.jit(pos * np.nan, 0.1).block_until_ready()
    with pytest.raises(ValueError, match="dimensions"):
        kernel_sums(oracles.uniform(50, 4), 0.1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [0.5, -0.5])
def test_sums_that_overflow_float64_raise(x64: None, form: str, value: float) -> None:
    """The norm of a top hat in two dimensions is below 1, so its product with the largest number is finite."""
    pos, h = np.array([[4e-301, 2e-303], [1e-300, 0.0]]), np.array([3e-301, 1e-300])
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"the sum in row 0 is outside the range of float64"):
        jax.block_until_ready(kernel_sums(pos, h, values=np.array([value, 1e-320]), kernel="top_hat", form=form))


def test_overflowing_terms_that_cancel_raise() -> None:
    """Their difference was 0, which is wrong."""
    pos, h = np.zeros((2, 8), np.float32), np.full(2, 1e-37, np.float32)
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"the sum in row 0 is outside the range of float32"):
        jax.block_until_ready(kernel_sums(pos, h, values=np.float32([1e30, -2e30]), kernel="top_hat", form="scatter"))
