#!/usr/bin/env bash
# checks/wheel.sh: builds a wheel in dist/ that installs without a compiler, in an environment with the group "wheel".
#
# JZTREE_CUDA=ON includes the GPU kernels, for all architectures unless CUDAARCHS names some. The build tag of such a wheel
# names the generation of CUDA, and makes pip prefer it to the plain wheel, whose content it includes. MACHINE=aarch64 builds
# for aarch64 on x86-64 with Debian's cross-compiler. auditwheel checks the libraries that the wheel needs from the
# system, names the wheel accordingly, and fails if the wheel cannot stand alone.
set -euo pipefail
cd "$(dirname "$0")/.."
export JZTREE_CUDA=${JZTREE_CUDA:-OFF}
here=$(uname -m) machine=${MACHINE:-$(uname -m)}
if [ "$machine" != "$here" ]; then
  if [ "$JZTREE_CUDA" = ON ]; then
    echo "GPU kernels for $machine are compiled there: JZTREE_CUDA=ON make wheel" >&2
    exit 1
  fi
  if ! command -v "$machine-linux-gnu-g++" >/dev/null; then
    echo "a wheel for $machine needs $machine-linux-gnu-g++, which is not on this machine;" \
      "on Debian: apt-get install g++-${machine//_/-}-linux-gnu" >&2
    exit 1
  fi
  export CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$machine
    -DCMAKE_CXX_COMPILER=$machine-linux-gnu-g++ -DJZTREE_WERROR=${JZTREE_WERROR:-OFF}"
fi
if [ "$JZTREE_CUDA" = ON ]; then
  generation=$("${CUDACXX:-nvcc}" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  export SKBUILD_WHEEL_BUILD_TAG=1cuda$generation
fi
rm -rf build/wheel
pip wheel --quiet --no-deps --wheel-dir build/wheel .
if [ "$machine" != "$here" ]; then
  wheel tags --remove --platform-tag "linux_$machine" build/wheel/*.whl
fi
auditwheel repair --wheel-dir dist build/wheel/*.whl
