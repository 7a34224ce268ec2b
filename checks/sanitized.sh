#!/usr/bin/env bash
# checks/sanitized.sh COMMAND ...: runs a command with the CPU library of `cmake --build --preset sanitized`.
#
# The address sanitizer's runtime must be loaded before all other libraries, together with the C++ runtime, because the
# sanitizer has to intercept C++ exceptions.
set -euo pipefail
cxx=${CXX:-c++}
export LD_PRELOAD="$($cxx -print-file-name=libasan.so) $($cxx -print-file-name=libstdc++.so)"
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export JZTREE_INSTRUCTION_SET=sanitized
exec "$@"
