# Everything works on a machine with Python 3.11+, make and a C++17 compiler. The virtual environment is made on first use;
# PYTHON=python3.13 VENV=.venv-3.13 behind `make test` is for another Python.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JZTREE_WERROR ?= OFF
ifeq ($(MAKECMDGOALS),wheel)
# A wheel is for other machines: CUDA kernels if they are asked for, and for all architectures.
export JZTREE_CUDA ?= OFF
else
# CUDA kernels where there is a GPU, for that GPU; they take minutes to compile for each architecture.
export JZTREE_CUDA ?= $(if $(shell command -v nvidia-smi),AUTO,OFF)
export CUDAARCHS ?= native
endif
SOURCES := pyproject.toml CMakeLists.txt $(shell find jztree jztree_utils -path jztree/lib -prune -o -type f -not -name '*.pyc' -print)

# What an extra of the package asks for, without building the package again.
install_extra = $(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$(1)'], sep='\n')" | xargs $(BIN)/pip install --quiet

# Where the installed package has its native libraries, and where the compiler has a library of its runtime.
installed_libraries = "$$($(BIN)/python -c 'import jztree.kernels; print(jztree.kernels.native_info()["cpu_library"].rsplit("/", 1)[0])')"
runtime = $$($(CXX) -print-file-name=$(1))

# What the CUDA kernels take part in.
EMULATED_TESTS ?= $(addprefix tests/test_,catalogue.py comm.py distr_fof.py distr_knn.py fof.py fof_errors.py grouping.py knn.py \
  knn_errors.py knn_transforms.py overdensity.py snapshots.py tree.py zorder.py)

.PHONY: demo docs test test-all test-emulated fuzz fuzz-sanitized lint format bench profile gpu-check aarch64 wheel clean

demo: $(VENV)/installed ## Find the halos of a real N-body snapshot and draw them.
	mkdir -p demo
	$(BIN)/jztree fof sample --output demo/halos.hdf5 --plot demo/halos.png

docs: $(VENV)/installed ## The documentation as a site, build/docs/html/index.html; every warning is an error.
	$(call install_extra,docs)
	$(BIN)/sphinx-build -W -q -b html docs build/docs/html

test: $(VENV)/installed ## The tests that take seconds.
	$(BIN)/pytest -n 2

test-all: $(VENV)/installed ## Also those that take minutes.
	$(call install_extra,tables)
	$(BIN)/pytest -n 2 -m "slow or not slow"

test-emulated: $(VENV)/installed ## The library's tests with the CUDA kernels, run by an emulator; no GPU is needed.
	$(call install_extra,emulator)
	$(BIN)/cmake -S . -B build/emulated -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DJZTREE_CUDA=OFF -DJZTREE_CUDA_EMULATED=ON \
	  -DJZTREE_FFI_INCLUDE="$$($(BIN)/python -c 'import jax; print(jax.ffi.include_dir())')"
	$(BIN)/cmake --build build/emulated --target jztree_cpu_cuda-emulated
	cp build/emulated/tests/native/cuda_emulator/libjztree_cpu_cuda-emulated.so $(installed_libraries)
	JZTREE_INSTRUCTION_SET=cuda-emulated $(BIN)/pytest -n 2 $(EMULATED_TESTS)

fuzz: $(VENV)/installed ## Random hostile input for ten minutes, judged by slow oracles; ARGS="--help" says what can be chosen.
	$(BIN)/python tests/fuzz --seconds 600 $(ARGS)

# The sanitizer's own runtime must be there before all others, and the C++ one, whose exceptions it has to see.
fuzz-sanitized: $(VENV)/installed ## The same with a CPU library that ends the program at bad addresses and undefined behaviour.
	$(call install_extra,emulator)
	$(BIN)/cmake -S . -B build/sanitized -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja -DJZTREE_CUDA=OFF -DJZTREE_SANITIZED=ON \
	  -DJZTREE_FFI_INCLUDE="$$($(BIN)/python -c 'import jax; print(jax.ffi.include_dir())')"
	$(BIN)/cmake --build build/sanitized --target jztree_cpu_sanitized
	cp build/sanitized/jztree/native/cpu/libjztree_cpu_sanitized.so $(installed_libraries)
	LD_PRELOAD="$(call runtime,libasan.so) $(call runtime,libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	  JZTREE_INSTRUCTION_SET=sanitized $(BIN)/python tests/fuzz --seconds 600 $(ARGS)

lint: $(VENV)/linters ## Format, lint and types, for Python and C++.
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	$(BIN)/mypy && $(BIN)/mypy tests/typed_script.py
	find jztree/native tests/native \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/linters
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .
	find jztree/native tests/native \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 $(BIN)/clang-format -i

bench: $(VENV)/installed ## Speed beside other libraries, and stages, memory and hard inputs; ARGS="--help" says what can be chosen.
	$(call install_extra,benchmark)
	$(BIN)/python checks/benchmarks/against_peers.py $(ARGS)
	$(BIN)/python checks/benchmarks/one_device.py

profile: $(VENV)/installed ## Time, rows sent and rounds over four host devices, as ratios to one.
	$(BIN)/python checks/profiling/multi_device.py --host-devices 4

gpu-check: ## What only a GPU can show; needs JAX for CUDA and nvcc, and no network. ARGS="--help" says what can be chosen.
	$(PYTHON) checks/gpu $(ARGS)

aarch64: $(VENV)/installed ## Compile the CPU library for aarch64 (needs g++-aarch64-linux-gnu).
	cmake -S . -B build/aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DJZTREE_WERROR=ON \
	  -DJZTREE_FFI_INCLUDE="$$($(BIN)/python -c 'import jax; print(jax.ffi.include_dir())')"
	cmake --build build/aarch64 --parallel

# auditwheel looks at what the libraries ask of the system, names the wheel by it, and fails if it cannot stand alone. A
# wheel with CUDA kernels holds all of the plain one, and its number makes pip prefer it.
wheel: $(VENV)/bin/python ## A wheel in dist/ that installs without a compiler; JZTREE_CUDA=ON in front for one with the GPU kernels.
	$(call install_extra,wheel)
	rm -rf build/wheel
	$(if $(filter ON,$(JZTREE_CUDA)),SKBUILD_WHEEL_BUILD_TAG=1cuda) $(BIN)/pip wheel --quiet --no-deps --wheel-dir build/wheel .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python $(SOURCES)
	@echo "compiling and installing jztree into $(VENV), which takes a few minutes"
	SKBUILD_CMAKE_DEFINE="JZTREE_WERROR=$(JZTREE_WERROR)" $(BIN)/pip install --quiet '.[plot,test]'
	touch $@

$(VENV)/linters: $(VENV)/installed
	$(call install_extra,lint)
	touch $@

clean:
	rm -rf $(VENV) build demo dist
