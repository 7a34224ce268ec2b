"""Vectors of the CPU kernels stay in registers: with every instruction set, simple functions do not use the stack.

With four registers or more, GCC keeps a vector in memory if a loop goes over its registers. Loads then wait for stores
to the stack, and float64 searches with AVX2 took five times as long as float32 searches.
"""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "jztree" / "native"
FUNCTIONS = """
#include "common/cpu/candidate.h"
#include "common/cpu/exact_distances.h"
#include "knn/sorted_registers.h"
namespace jztree {
void insert(SortedRegisters<uint32_t, 48>::Vector* stored, const uint32_t* numbers, int64_t count) {
  SortedRegisters<uint32_t, 48> list(stored);
  for (int64_t i = 0; i < count; ++i) list.insert(numbers[i]);
  list.store(stored);
}
uint32_t falls(const double* squares) {
  Lanes<double> before, after;
  load(squares, before);
  load(squares + 1, after);
  return lanes_at_most(after, before);
}
void lengths(const float* x, const float* y, double unit, double* out) {
  Lanes<double> from, to;
  load(x, from);
  load(y, to);
  const Lanes<double> difference = from - to;
  store(square_root(difference * difference) * unit, out);
}
uint32_t within(const float* x, float at, float radius2) {
  Lanes<float> there;
  load(x, there);
  const Lanes<float> difference = there - Lanes<float>(at);
  return lanes_at_most(difference * difference, Lanes<float>(radius2));
}
void distances(const Candidate<float>* candidates, float* out) {
  Lanes<float> distance2;
  load_distances(candidates, distance2);
  store(distance2, out);
}
}  // namespace jztree
"""
# The same for a vector whose registers a loop visits.
LOOP = """
#include "common/cpu/lanes.h"
namespace jztree {
uint32_t falls(const double* squares) {
  Lanes<double> before{}, after{};
  for (int i = 0; i < Lanes<double>::registers; ++i) {
    std::memcpy(&before.part[i], squares + i * Lanes<double>::width, register_bytes);
    std::memcpy(&after.part[i], squares + 1 + i * Lanes<double>::width, register_bytes);
  }
  return lanes_at_most(after, before);
}
}  // namespace jztree
"""


def flags(instruction_set: str) -> list[str]:
    """Return the compiler flags of the library for an instruction set."""
    text = (NATIVE / "common" / "cpu" / "CMakeLists.txt").read_text()
    (common,) = re.findall(r"^set\(flags (.*?)\)$", text, re.MULTILINE | re.DOTALL)
    (specific,) = re.findall(rf"set\(flags_of_{instruction_set} (.*?)\)", text)
    return ["-std=c++17", *common.split(), *specific.split(), "-Wno-psabi"]


def stack_accesses(source: str, instruction_set: str) -> list[str]:
    """Return the instructions of compiled functions that use the stack or fill memory."""
    command = ["c++", *flags(instruction_set), "-x", "c++", "-S", "-o", "-", "-I", str(NATIVE), "-"]
    run = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    return [line.strip() for line in run.stdout.splitlines() if re.search(r"%rsp|\(%rbp\)|rep (?:stos|movs)", line)]


pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("c++") is None, reason="needs a C++ compiler for x86-64"
)


def test_vectors_stay_in_registers() -> None:
    for instruction_set in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        assert stack_accesses(FUNCTIONS, instruction_set) == [], instruction_set


def test_vectors_on_the_stack_are_detected() -> None:
    assert stack_accesses(LOOP, "x86-64-v3")
