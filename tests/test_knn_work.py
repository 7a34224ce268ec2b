"""The work of the CUDA kernel for neighbours must not exceed recorded counts, and its lists must stay in registers.

`checks/profiling/knn_instructions.py` converts the same counts to instructions; docs/gpu.md has the results.
"""

import re
import shutil
from pathlib import Path

import pytest
from scripts import profiling

from jztree import kernels
from jztree.config import TreeConfig

# For 4000 uniform points, periodic: the total number of times that groups of 32 queries run each part of the kernel.
COUNTED = {
    8: {"group": 125, "rows": 6688, "block": 5134, "absorb": 1218, "look below": 1279},
    32: {"group": 125, "rows": 8897, "block": 4799, "absorb": 1516, "look below": 1437},
}

SCRIPT = profiling("knn_instructions")


def documented_registers() -> dict[int, int]:
    """Return the registers by k in the table of docs/gpu.md."""
    page = (Path(__file__).parents[1] / "docs" / "gpu.md").read_text()
    rows = re.findall(r"^\| (\d+) \| [\d,]+ \| (\d+) \| 0 \|$", page, re.MULTILINE)
    return {int(k): int(registers) for k, registers in rows}


@pytest.mark.emulated
@pytest.mark.skipif(
    kernels.native_info()["instruction_set"] != "cuda-emulated", reason="the CUDA kernels are not emulated here"
)
@pytest.mark.parametrize("k", COUNTED)
def test_work_equals_the_recorded_counts(k: int) -> None:
    counts = SCRIPT.count_parts(4000, k, 1.0, TreeConfig())
    assert {part: counts[part] for part in COUNTED[k]} == COUNTED[k]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
@pytest.mark.parametrize("k", [8, 16, 32])
def test_neighbour_lists_remain_in_registers(k: int, tmp_path: Path) -> None:
    registers = SCRIPT.compile_kernel(k, 90, tmp_path)
    assert registers.spilled_bytes == 0
    assert registers.used <= documented_registers()[k]
