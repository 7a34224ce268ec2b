#!/usr/bin/env bash
# checks/aarch64.sh PYTHON: tests the newest aarch64 wheel in dist/ on a Debian machine with another processor.
#
# qemu-user runs programs for another processor on this kernel. Python and the system libraries for aarch64 are packages
# of this machine's Debian version, unpacked into build/aarch64. JAX and the other test dependencies are the wheels that
# aarch64 users get; pip selects them, and ours, for that processor. The script does not change the system and does not
# need root. Tests that start processes cannot run, because the kernel cannot execute aarch64 programs directly.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
root=$PWD/build/aarch64/root site=$PWD/build/aarch64/site apt=$PWD/build/aarch64/apt
# XLA compiles slowly in an emulator, and its code is not under test.
export XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false" JAX_PLATFORMS=cpu

for need in qemu-aarch64:qemu-user apt-get:apt dpkg-deb:dpkg; do
  if ! command -v "${need%:*}" >/dev/null; then
    echo "checks/aarch64.sh needs ${need%:*}, which is not installed on this machine; on Debian: apt-get install ${need#*:}" >&2
    exit 1
  fi
done
wheel=$(ls -t dist/jztree_native-*_aarch64.whl 2>/dev/null | head -1 || true)
if [ -z "$wheel" ]; then
  echo "checks/aarch64.sh finds no wheel for aarch64 in dist/; build one with make wheel MACHINE=aarch64" >&2
  exit 1
fi

# apt gets a separate, empty list of installed packages, so that it downloads every dependency of Python.
if [ ! -e "$root/complete" ]; then
  rm -rf "$root" "$apt"
  mkdir -p "$root" "$apt/lists/partial" "$apt/archives/partial"
  : >"$apt/status"
  settings=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1
    -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt")
  apt-get "${settings[@]}" update
  if ! apt-get "${settings[@]}" --yes --no-install-recommends --download-only install python3 libstdc++6; then
    echo "checks/aarch64.sh: the package sources of this machine have no Python for arm64; use those of Debian" >&2
    exit 1
  fi
  for package in "$apt"/archives/*.deb; do
    dpkg-deb --extract "$package" "$root"
  done
  touch "$root/complete"
fi
version=$(basename "$(ls -d "$root"/usr/lib/python3.*)")
version=${version#python}

rm -rf "$site"
# pip compares platform names, so the script passes every platform that this libc supports.
libc=$(ls "$apt"/archives/libc6_*)
libc=${libc##*libc6_2.}
platforms=(--platform manylinux2014_aarch64)
for ((minor = 17; minor <= ${libc%%[!0-9]*}; minor++)); do
  platforms+=(--platform "manylinux_2_${minor}_aarch64")
done
"$python" -m pip install --quiet --target "$site" --only-binary=:all: --python-version "$version" "${platforms[@]}" \
  "$wheel" hypothesis pytest scipy

emulated() {
  PYTHONHOME=$root/usr PYTHONPATH=$site:$PWD/tests PYTHONDONTWRITEBYTECODE=1 JZTREE_TESTS_OPTIMIZED=1 \
    qemu-aarch64 -L "$root" "$root/usr/bin/python$version" -P "$@"
}
echo "$wheel, with Python $version:"
emulated -m jztree_utils.cli info
# Compare the bits of both machines: print the instruction set, and a hash of the results in both dtypes.
script="from native import test_kernels; exec(test_kernels._PRINT_HASH)"
there=$(emulated -c "$script")
here=$(PYTHONPATH=$PWD:$PWD/tests "$python" -P -c "$script")
paste <(echo "$there") <(echo "$here")
if [ "$(tail -n +2 <<<"$there")" != "$(tail -n +2 <<<"$here")" ]; then
  echo "checks/aarch64.sh: results on aarch64 differ in bits from those of this machine" >&2
  exit 1
fi
# Test other kernels against oracles; this takes minutes. Other test files import packages that are not installed here.
mapfile -t files < <(grep -l pytest.mark.aarch64 tests/*/test_*.py)
emulated -m pytest -p no:cacheprovider --cases-of-each 1 -m aarch64 "${files[@]}"
