"""Counts the instructions of a warp that finds the k nearest neighbours of 32 queries, without a GPU.

The kernel marks its parts with JZTREE_COUNT. The emulator counts the runs of each part by a warp. The machine code
names the source line of each instruction, which gives the number of instructions per part. The sum of the products is
an upper limit of the instructions issued by a warp, because instructions skipped by a branch inside a part count also.

It needs nvcc, nvdisasm (of CUDA, or ``pip install nvidia-cuda-nvdisasm``) and the emulator's library
(``make test-emulated`` builds it)::

    JZTREE_INSTRUCTION_SET=cuda-emulated python checks/profiling/knn_instructions.py
"""

import argparse
import collections
import ctypes
import dataclasses
import os
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jztree import kernels
from jztree.config import GPU_LEAF_SIZE, KNNConfig, TreeConfig
from jztree.knn import knn

_NATIVE = pathlib.Path(__file__).parents[2] / "jztree" / "native"

_SOURCE = """
#include "knn/knn_search.cuh"
// A block is one warp.
static_assert(jztree::short_search_bytes<{width}, jztree::ShortList<{entries}, float, {keyed}>, float>({planes}) <=
              {shared_bytes});
template __global__ void jztree::search_short<{width}, {entries}, float, float, {repeated}, {keyed}>(
    const __grid_constant__ jztree::Problem<float>, const jztree::StagedRow<{width}, float>*,
    const jztree::Scale<{width}, float>*,
    const __grid_constant__ jztree::Limits<{width}, float>, int64_t, uint32_t, jztree::Unanswered, jztree::Unanswered);
"""
# The flags of jztree/native/common/cuda/CMakeLists.txt.
_FLAGS = ["-std=c++17", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "-lineinfo", "-cubin", "-Xptxas=-v"]
_CAPACITIES = (4, 8, 16, 32, 64)  # of the lists in up to 3 dimensions
# By the padded dimensions: the largest number of neighbours of lists that are sorted by keys.
_MAX_KEYED = {2: 64, 3: 64, 6: 16, 8: 0}
_OF_EACH_DIMENSION = "crossed dimension"  # a part that is unrolled over dimensions; only some dimensions run it
_PLANES = 8  # of the hierarchy of 1e9 particles

# Of a multiprocessor of compute capability 9.0: it has four parts with their own registers, which a warp takes in units
# of 256. A block takes 1 kB of shared memory in addition to its own.
_PARTS, _REGISTERS, _UNIT = 4, 16384, 256
_SHARED_BYTES, _BLOCK_BYTES = 228 << 10, 1 << 10

_MARK = re.compile(r'JZTREE_COUNT\("(.*)"\);')
_FRAME = re.compile(r'//## File "([^"]+)", line (\d+)')
_LABEL = re.compile(r"^(\.L\w+):")
_TARGET = re.compile(r"`\((\.L\w+)\)")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);")


@dataclasses.dataclass(frozen=True)
class Registers:
    """The registers that ptxas reports for the kernel for one k."""

    used: int
    spilled_bytes: int
    frame_bytes: int

    @property
    def warps(self) -> int:
        """The number of warps for which a multiprocessor of compute capability 9.0 has registers."""
        of_warp = -(-32 * self.used // _UNIT) * _UNIT
        return _PARTS * (_REGISTERS // of_warp)


def marked_lines(path: pathlib.Path) -> dict[int, str]:
    """Return the part of each source line: the innermost block of braces around it that begins with a mark."""
    parts: dict[int, str] = {}
    open_blocks: list[str] = [""]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code = line.split("//")[0]
        if mark := _MARK.search(code):
            open_blocks[-1] = mark[1]
        named = [part for part in open_blocks if part]
        if named:
            parts[number] = named[-1]
        for bracket in re.sub(r'"[^"]*"', "", code):
            if bracket == "{":
                open_blocks.append("")
            elif bracket == "}":
                open_blocks.pop()
    return parts


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of machine code: its labels, its text, and the source lines that it came from, the innermost first."""

    labels: tuple[str, ...]
    text: str
    lines: tuple[tuple[str, int], ...]


def read_instructions(disassembly: str) -> list[Instruction]:
    """Return the instructions of a function as listed by nvdisasm."""
    result: list[Instruction] = []
    lines: list[tuple[str, int]] = []
    labels: list[str] = []
    fresh = True
    for line in disassembly.splitlines():
        if frame := _FRAME.search(line):
            lines, fresh = ([*lines, (frame[1], int(frame[2]))] if fresh else [(frame[1], int(frame[2]))]), True
        elif label := _LABEL.match(line):
            labels.append(label[1])
        elif instruction := _INSTRUCTION.match(line):
            result.append(Instruction(tuple(labels), instruction[1], tuple(lines)))
            labels, fresh = [], False
    return result


def reached(instructions: list[Instruction]) -> list[bool]:
    """Return which instructions a warp can reach if its lanes stay together.

    Instructions after a BRA.DIV serve lanes that arrive at a warp-wide operation one by one, and are not reached.
    """
    place = {label: i for i, instruction in enumerate(instructions) for label in instruction.labels}
    visited = [False] * len(instructions)
    ahead = [0]
    while ahead:
        i = ahead.pop()
        if i >= len(instructions) or visited[i]:
            continue
        visited[i] = True
        text = instructions[i].text
        if (target := _TARGET.search(text)) and "BRA.DIV" not in text:
            ahead.append(place[target[1]])
        if not re.match(r"(BRA|EXIT|RET)\b", text) or text.startswith("BRA.DIV"):
            ahead.append(i + 1)
    return visited


def parts_of(disassembly: str) -> dict[str, int]:
    """Return the instructions of each part. Code of a function without marks counts for the part that calls it."""
    marks: dict[str, dict[int, str]] = {}
    counts: collections.Counter[str] = collections.Counter()
    instructions = read_instructions(disassembly)
    for instruction, comes in zip(instructions, reached(instructions), strict=True):
        if comes:
            for path, _ in instruction.lines:
                marks.setdefault(path, marked_lines(pathlib.Path(path)))
            counts[next((marks[path][line] for path, line in instruction.lines if line in marks[path]), "")] += 1
    return dict(counts)


def padded(dims: int) -> int:
    """Return the number of coordinates of the kernel that searches in these dimensions."""
    return next(width for width in _MAX_KEYED if dims <= width)


def compile_kernel(k: int, architecture: int, folder: pathlib.Path, warps: int = 1, dims: int = 3) -> Registers:
    """Compile the kernel for k neighbours in float32 to kernel.cubin in a folder.

    Raises:
        subprocess.CalledProcessError: Among others, if a multiprocessor of compute capability 9.0 has not enough shared
            memory for this number of warps.
    """
    source = folder / "kernel.cu"
    width = padded(dims)
    capacities = _CAPACITIES if width <= 3 else _CAPACITIES[:-1] if width < 8 else _CAPACITIES[1:3]
    parameters = {
        "width": width,
        "entries": next((entries for entries in capacities if k <= entries), 32),
        "repeated": "true" if k > capacities[-1] else "false",
        "keyed": "true" if 4 < k <= _MAX_KEYED[width] else "false",
        "planes": _PLANES,
        "shared_bytes": _SHARED_BYTES // warps - _BLOCK_BYTES,
    }
    source.write_text(_SOURCE.format(**parameters))
    include = [f"-I{_NATIVE}", "-isystem", jax.ffi.include_dir()]
    command = ["nvcc", *_FLAGS, *include, f"-arch=sm_{architecture}", str(source), "-o", str(folder / "kernel.cubin")]
    # Ignore options of the environment, which may be for faster compilation.
    environment = {name: value for name, value in os.environ.items() if name != "NVCC_APPEND_FLAGS"}
    report = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stderr
    pattern = r"search_short.*?(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers"
    about = re.search(pattern, report, re.DOTALL)
    assert about, report
    return Registers(int(about[3]), int(about[2]), int(about[1]))


def instructions_of_parts(folder: pathlib.Path, nvdisasm: str) -> dict[str, int]:
    """Return the number of instructions of each part of the compiled kernel."""
    command = [nvdisasm, "-gi", "-c", "-ndf", str(folder / "kernel.cubin")]
    disassembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = re.search(r"^\.text\.\S*search_short\S*:(.*?)(?=^//-----|\Z)", disassembly, re.DOTALL | re.MULTILINE)
    assert text
    return parts_of(text[1])


def count_runs(call: Callable[[], Any]) -> dict[str, int]:
    """Return the number of runs of each part by warps in a call."""
    library = ctypes.CDLL(kernels.native_info()["cpu_library"])
    library.jztree_emulator_counts.restype = ctypes.c_char_p
    library.jztree_emulator_counts()
    jax.block_until_ready(call())
    lines = library.jztree_emulator_counts().decode().splitlines()
    return {name: int(count) for name, count in (line.rsplit("=", 1) for line in lines)}


def uniform_points(n: int, dims: int = 3) -> jax.Array:
    """Return n points of the unit cube, float32."""
    return jnp.asarray(np.random.default_rng(7).random((n, dims), dtype=np.float32))


def count_parts(
    n: int, k: int, box: float | None, tree: TreeConfig, max_radius: float | None = None, dims: int = 3
) -> dict[str, int]:
    """Return the runs of each part for the k nearest neighbours of n uniform points that are also the queries."""
    pos = uniform_points(n, dims)
    return count_runs(lambda: knn(pos, k, boxsize=box, cfg=KNNConfig(tree=tree), max_radius=max_radius))


def print_parts(counts: dict[str, int], instructions: dict[str, int], dims: int) -> None:
    """Print one line per part of the kernel: its runs per group of queries, its length, and the product."""
    groups = counts["group"]
    if _OF_EACH_DIMENSION in instructions:
        instructions = {**instructions, _OF_EACH_DIMENSION: instructions[_OF_EACH_DIMENSION] // padded(dims)}
    issued = {part: times * instructions.get(part, 0) / groups for part, times in counts.items()}
    for part in sorted(issued, key=issued.__getitem__, reverse=True):
        print(f"  {part:28}{counts[part] / groups:10.2f} x {instructions.get(part, 0):5} = {issued[part]:10.0f}")
    print(f"  {'all':28}{sum(issued.values()):31.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--dims", type=int, default=3)
    parser.add_argument("--architecture", type=int, default=90)
    parser.add_argument("--leaf-size", type=int, default=GPU_LEAF_SIZE)
    parser.add_argument("--fan-out", type=int, default=TreeConfig().fan_out)
    parser.add_argument("--open", action="store_true", help="no periodic box")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    selected = parser.parse_args()
    tree = TreeConfig(leaf_size=selected.leaf_size, fan_out=selected.fan_out)
    for k in selected.k:
        with tempfile.TemporaryDirectory() as folder:
            registers = compile_kernel(k, selected.architecture, pathlib.Path(folder), dims=selected.dims)
            instructions = instructions_of_parts(pathlib.Path(folder), selected.nvdisasm)
        print(f"k = {k}: {registers}, {registers.warps} warps")
        counts = count_parts(selected.n, k, None if selected.open else 1.0, tree, dims=selected.dims)
        print_parts(counts, instructions, selected.dims)


if __name__ == "__main__":
    main()
