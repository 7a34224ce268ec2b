"""The traffic of the CUDA kernels to a GPU's memory must not exceed recorded counts.

`checks/profiling/memory_sectors.py` counts it for more particles.
"""

import cuda_tools
import pytest
from scripts import profiling

pytestmark = [pytest.mark.watched, cuda_tools.only_watched]

SCRIPT = profiling("memory_sectors")

# Sectors of 32 bytes read and written for 4000 uniform points, per particle or per group of 32 queries.
COUNTED = {
    "zsort": (7.04, 2.81),
    "hierarchy": (4.47, 0.16),
    "fof": (13.02, 0.34),
    "knn 8": (2119.65, 112.05),
    "knn 32": (4809.26, 400.11),
}
# Tolerance for changes in how the host compiler joins accesses.
MORE = 1.05


def test_memory_sectors_do_not_exceed_the_recorded_number() -> None:
    result = SCRIPT.count_searches(4000, [8, 32])
    for kernel, (read, written) in COUNTED.items():
        assert 0 < result[kernel].read <= MORE * read, kernel
        assert 0 < result[kernel].written <= MORE * written, kernel


def test_radii_are_written_once_and_rows_twice() -> None:
    # 32 queries write 8 radii and 8 rows of 4 bytes each. The rows in z-order are then replaced by input rows. The
    # staged sources take 16 bytes each.
    written = SCRIPT.count_searches(4000, [8])["knn 8"].written
    assert written == pytest.approx(32 * (8 * 3 * 4 + 16) / 32, rel=0.01)
