"""The CUDA kernels for neighbours and counts do no more work than recorded, and their lists stay in registers.

ptxas reports registers and spills. Unlike `cuobjdump -res-usage`, it names spilled bytes, and it comes with nvcc.

`checks/profiling/knn_instructions.py` converts the same counts to instructions.
"""

import shutil
from pathlib import Path

import cuda_tools
import numpy as np
import pytest
import scipy.spatial
from scripts import profiling

from jztree import count_within
from jztree.config import GPU_LEAF_SIZE, KNNConfig, RadiusConfig, TreeConfig
from jztree.knn import knn

# For 4000 uniform points, periodic: the total number of times that groups of 32 queries run each part of the kernel.
COUNTED = {
    8: {"group": 126, "rows": 4077, "block": 3155, "block across": 1735, "absorb": 1151, "look below": 1636},
    32: {"group": 128, "rows": 5925, "block": 5137, "block across": 3371, "absorb": 3018, "look below": 1877},
    64: {"group": 127, "rows": 6999, "block": 6902, "block across": 5536, "absorb": 2970, "look below": 1959},
}

# With leaves of 24, the top planes over these numbers of points have 32, 5, 6, 7, 8 and 16 nodes. If it may have 64
# nodes, the second to fifth top planes have 33 to 63, and the groups do 1.2 to 1.6 times the work.
POINTS = (6000, 6300, 8000, 10_000, 12_000, 3000)

# By k, for compute capability 9.0: registers, spilled bytes, bytes of local memory, and the warps that run at once on a
# multiprocessor in a hierarchy of 1e9 particles.
RESOURCES = {
    4: (128, 0, 40, 16),
    8: (128, 0, 40, 16),
    16: (128, 0, 40, 16),
    32: (128, 0, 40, 16),
    64: (128, 0, 40, 12),
    128: (168, 0, 40, 9),
}


SCRIPT = profiling("knn_instructions")
TREE = TreeConfig(leaf_size=GPU_LEAF_SIZE)


emulated = cuda_tools.only_emulated


@pytest.mark.emulated
@emulated
@pytest.mark.parametrize("k", COUNTED)
def test_work_equals_the_recorded_counts(k: int) -> None:
    counts = SCRIPT.count_parts(4000, k, 1.0, TREE)
    assert {part: counts[part] for part in COUNTED[k]} == COUNTED[k]


@pytest.mark.emulated
@emulated
def test_balls_compare_only_rows_near_their_group() -> None:
    pos, cfg = SCRIPT.uniform_points(4000), RadiusConfig(tree=TREE)
    radius = (30 / 4000 * 3 / (4 * np.pi)) ** (1 / 3)  # about 30 neighbours
    counts = SCRIPT.count_runs(lambda: count_within(pos, radius, boxsize=1.0, cfg=cfg))
    groups = counts["group of queries"]
    # The opened leaves hold more than twice as many rows.
    assert counts["leaf"] / groups == pytest.approx(23.8, rel=0.02)
    assert counts["row"] / groups == pytest.approx(203.5, rel=0.02)


@pytest.mark.emulated
@emulated
def test_work_of_a_group_is_the_same_for_any_number_of_points() -> None:
    work = []
    for n in POINTS:
        counts = SCRIPT.count_parts(n, 8, 1.0, TREE)
        # The parts of about a hundred instructions.
        work.append((counts["rows"] + counts["block"] + counts["block across"]) / counts["group"])
    assert max(work) <= 1.15 * min(work), dict(zip(POINTS, work, strict=True))


@pytest.mark.emulated
@emulated
@pytest.mark.parametrize("dims", [3, 4, 6, 8])
def test_rows_next_to_faces_choose_images_in_few_dimensions(dims: int) -> None:
    counts = SCRIPT.count_parts(2000, 8, 1.0, TREE, dims=dims)
    # A block of rows in 8 dimensions is computed in two halves.
    dimensions = counts["crossed dimension"] / (2 if dims == 8 else 1)
    assert counts.get("block pair by pair", 0) == 0
    assert 0 < dimensions <= dims * counts["block across"]
    if dims == 3:
        assert dimensions < 0.9 * dims * counts["block across"]


@pytest.mark.emulated
@emulated
@pytest.mark.parametrize(("k", "searches"), [(8, 1.06), (32, 1.06), (64, 1.12)])
def test_dense_centre_renumbers_rows_and_is_rarely_searched_twice(k: int, searches: float) -> None:
    n = 12_000
    random = np.random.default_rng(5)
    direction = random.standard_normal((n, 3))
    # A cusp: groups around its centre visit more rows than they have labels.
    radius = random.random((n, 1)) ** 4
    pos = (direction / np.linalg.norm(direction, axis=1, keepdims=True) * radius).astype(np.float32)
    result = []
    counts = SCRIPT.count_runs(lambda: result.append(knn(pos, k, cfg=KNNConfig(tree=TREE))) or result[0])
    assert counts["renumber"] > 10
    assert counts["group"] <= searches * n / 32
    distance, _ = scipy.spatial.cKDTree(pos).query(pos, k)
    np.testing.assert_allclose(result[0][0], distance, rtol=3e-7, atol=1e-12)


@pytest.mark.emulated
@pytest.mark.parametrize("k", [8, 32, 64])
def test_neighbours_in_more_leaves_than_labels(k: int) -> None:
    pos = SCRIPT.uniform_points(4000)
    distance, _ = knn(pos, k, boxsize=1.0, cfg=KNNConfig(tree=TreeConfig(leaf_size=2)))
    expected, _ = scipy.spatial.cKDTree(pos, boxsize=1.0).query(pos, k)
    np.testing.assert_allclose(distance, expected, rtol=3e-7, atol=1e-12)


@pytest.mark.emulated
@emulated
def test_walk_with_a_limit_takes_hardly_more_looks_than_without() -> None:
    n = 15_000
    looks = [
        counts["look below"]
        for limit in (None, 2 * (0.75 * 8 / np.pi / n) ** (1 / 3))
        for counts in [SCRIPT.count_parts(n, 8, 1.0, TREE, limit)]
    ]
    # Without a limit, lists absorb their first candidates earlier.
    assert looks[1] <= 1.01 * looks[0]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
@pytest.mark.parametrize("k", RESOURCES)
def test_registers_spills_and_warps_are_within_limits(k: int, tmp_path: Path) -> None:
    registers, spilled, frame, warps = RESOURCES[k]
    # The compilation fails if the shared memory is not enough for the required warps.
    result = SCRIPT.compile_kernel(k, 90, tmp_path, warps)
    assert result.warps >= warps
    assert result.used <= registers
    assert result.spilled_bytes <= spilled
    # If the lists were in local memory, it would be larger by 8 bytes per entry.
    assert result.frame_bytes <= frame


def test_warps_are_limited_by_the_registers_of_each_part() -> None:
    warps = {used: SCRIPT.Registers(used, 0, 0).warps for used in (128, 129, 168, 169, 255)}
    assert warps == {128: 16, 129: 12, 168: 12, 169: 8, 255: 8}
