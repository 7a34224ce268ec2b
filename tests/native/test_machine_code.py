"""Properties of the machine code for GPUs that correct results depend on. The tests need nvcc and nvdisasm, but no GPU.

The kernels are compiled optimised, like in the library, but for one dimension. test_knn_work.py checks registers.
"""

import re
import subprocess
from pathlib import Path

import cuda_tools
import pytest

LIBRARY = Path(__file__).parents[2] / "jztree" / "lib" / "libjztree_cuda.so"
# Loads through a cache that does not see the writes of the same launch.
READ_ONLY = r"\bLDG?\.\S*CONSTANT\S*"
PLANTED = """
#include "common/cuda/loads.cuh"
__global__ void reads_only(const int* __restrict__ in, int* __restrict__ out) { out[threadIdx.x] = in[threadIdx.x]; }
__global__ void reads_shared(const int* in, int* out) { jztree::store_relaxed(out, jztree::load_relaxed(in)); }
"""


@pytest.fixture(scope="module")
def links(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The machine code of friends-of-friends."""
    cubin = tmp_path_factory.mktemp("fof") / "fof.cubin"
    cuda_tools.compile_cubin(cuda_tools.NATIVE / "fof" / "fof.cu", cubin, "-DJZTREE_DIMS=0b10")
    return cuda_tools.disassemble(cubin)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The machine code of two kernels whose loads are known."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.cu").write_text(PLANTED)
    cuda_tools.compile_cubin(folder / "planted.cu", folder / "planted.cubin")
    return cuda_tools.disassemble(folder / "planted.cubin")


def accesses(machine_code: str, operation: str) -> list[str]:
    """Return the instructions that access global memory, such as ``LDG.E.STRONG.GPU``."""
    return re.findall(rf"\b{operation}\.\S+", machine_code)


def functions(machine_code: dict[str, str], name: str) -> list[str]:
    result = [code for mangled, code in machine_code.items() if name in mangled]
    assert result, f"{name} is not among {sorted(machine_code)}"
    return result


@pytest.mark.long
def test_kinds_of_loads_are_recognised(planted: dict[str, str]) -> None:
    (only,), (shared,) = functions(planted, "reads_only"), functions(planted, "reads_shared")
    assert re.search(READ_ONLY, only)
    assert not re.search(READ_ONLY, shared)
    assert "STRONG" not in only
    assert accesses(shared, "LDG") == ["LDG.E.STRONG.GPU"]
    assert accesses(shared, "STG") == ["STG.E.STRONG.GPU"]


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["link_within", "link_to_later"])
def test_joins_of_sets_read_and_write_memory_that_all_multiprocessors_share(links: dict[str, str], kernel: str) -> None:
    for code in functions(links, kernel):
        swaps = [item for item in accesses(code, "ATOMG") if "CAS" in item]
        assert swaps
        assert all("STRONG.GPU" in swap for swap in swaps)
        # Each join reads a root and its parent again, and shortens the chain.
        assert accesses(code, "LDG").count("LDG.E.STRONG.GPU") >= 2 * len(swaps)
        assert accesses(code, "STG").count("STG.E.STRONG.GPU") >= len(swaps)


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["label_rows", "find_smallest"])
def test_labels_are_written_to_memory_that_all_multiprocessors_share(links: dict[str, str], kernel: str) -> None:
    for code in functions(links, kernel):
        assert "STG.E.STRONG.GPU" in accesses(code, "STG")


@pytest.mark.long
def test_no_kernel_of_the_library_reads_through_the_read_only_cache(tmp_path: Path) -> None:
    if not LIBRARY.exists():
        pytest.skip("the CUDA library is not compiled")
    # cuobjdump extracts the machine code into the current folder.
    subprocess.run([cuda_tools.tool("cuobjdump"), "-xelf", "all", str(LIBRARY)], check=True, cwd=tmp_path)
    cubins = sorted(tmp_path.glob("*.cubin"))
    assert cubins
    for cubin in cubins:
        for name, code in cuda_tools.disassemble(cubin).items():
            # CUDA's sine and cosine read their coefficients through this cache. No thread writes them.
            has_waves = any(kernel in name for kernel in ("tabulate_waves", "sum_groups", "make_image_grid"))
            assert has_waves or not re.search(READ_ONLY, code), name
