#!/usr/bin/env bash
# checks/benchmarks/against_commit.sh COMMIT [ARGS]: CPU time of each kernel in this checkout over that in COMMIT, in
# alternating calls. COMMIT is compiled into build/against/COMMIT the first time. With JZTREE_INSTRUCTION_SET=x86-64-v3
# in the environment, both use that set, and this checkout must have been compiled with JZTREE_INSTRUCTION_SETS=ALL.
set -euo pipefail
cd "$(dirname "$0")/../.."
commit=$1 tree=build/against/$1
shift
if [ ! -e "$tree/jztree/lib/libjztree_cpu.so" ]; then
  git worktree add --detach --force "$tree" "$commit"
  cmake -S "$tree" -B "$tree/build/dev" -G Ninja -DJZTREE_DEVELOP=ON -DJZTREE_CUDA=OFF \
    -DJZTREE_INSTRUCTION_SETS="$([ -n "${JZTREE_INSTRUCTION_SET:-}" ] && echo ALL || echo NATIVE)"
  cmake --build "$tree/build/dev"
fi
python checks/benchmarks/alternating.py --against "$tree" "$@"
