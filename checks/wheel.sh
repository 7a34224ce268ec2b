#!/usr/bin/env bash
# checks/wheel.sh: builds wheels in dist/ that install without a compiler, in an environment with the group "wheel".
#
# The wheel jztree-native has the CPU kernels, for all instruction sets. With JZTREE_CUDA=ON, each compiler in CUDACXX
# (nvcc if it is not set) adds a wheel with the GPU kernels, jztree-native-cuda12 or jztree-native-cuda13 depending on
# the version of the compiler, for all architectures unless CUDAARCHS lists some. MACHINE=aarch64 builds for aarch64 on
# x86-64 with Debian's cross-compiler. auditwheel checks which system libraries a wheel needs, names the wheel
# accordingly, and fails if the wheel needs a library that it must not depend on.
set -euo pipefail
cd "$(dirname "$0")/.."
cuda=${JZTREE_CUDA:-OFF}
export JZTREE_CUDA=OFF JZTREE_INSTRUCTION_SETS=ALL
here=$(uname -m) machine=${MACHINE:-$(uname -m)}
if [ "$machine" != "$here" ]; then
  if [ "$cuda" = ON ]; then
    echo "GPU kernels for $machine are compiled there: JZTREE_CUDA=ON make wheel" >&2
    exit 1
  fi
  if ! command -v "$machine-linux-gnu-g++" >/dev/null; then
    echo "a wheel for $machine needs $machine-linux-gnu-g++, which is not installed on this machine;" \
      "on Debian: apt-get install g++-${machine//_/-}-linux-gnu" >&2
    exit 1
  fi
  export CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine
    -DCMAKE_CXX_COMPILER=$machine-linux-gnu-g++ -DJZTREE_WERROR=${JZTREE_WERROR:-OFF}"
fi
rm -rf build/wheel
pip wheel --quiet --no-deps --wheel-dir build/wheel .
if [ "$cuda" = ON ]; then
  for compiler in ${CUDACXX:-nvcc}; do
    generation=$("$compiler" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    CUDACXX=$compiler pip wheel --quiet --no-deps --wheel-dir build/wheel "./packaging/cuda$generation"
  done
fi
if [ "$machine" != "$here" ]; then
  wheel tags --remove --platform-tag "linux_$machine" build/wheel/*.whl
fi
auditwheel repair --wheel-dir dist build/wheel/*.whl
