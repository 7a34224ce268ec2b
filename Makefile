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
# Which instruction sets the CPU kernels are compiled for: TWO are that of this machine and, for three dimensions, the
# plainest, to see that they give the same bits; NATIVE is the former alone; ALL is what packages have.
JZTREE_INSTRUCTION_SETS ?= TWO
# Installs what the package needs, and what the extras $(1) of it need, but not the package.
install_needs = $(BIN)/python -c "import sys, tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
  print(*project['dependencies'], *(need for name in sys.argv[1:] for need in project['optional-dependencies'][name]), sep='\n')" \
  $(1) | xargs -d '\n' $(BIN)/pip install --quiet

# Makes build/develop ready to compile in.
configure = $(BIN)/cmake -S . -B build/develop -G Ninja --log-level=WARNING -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
  -DPython_EXECUTABLE=$(abspath $(BIN))/python -DJZTREE_WERROR=$(JZTREE_WERROR) \
  -DJZTREE_INSTRUCTION_SETS=$(JZTREE_INSTRUCTION_SETS) -DJZTREE_CUDA=$(JZTREE_CUDA) \
  -DJZTREE_TEST_LIBRARIES=ON -DJZTREE_EMULATED_DIMS=$(JZTREE_EMULATED_DIMS) > build/configure.log

# The plainest library, for three dimensions, which is all that a snapshot needs; and what names it to who may have a better.
define first_library
@$(configure)
$(BIN)/cmake --build build/develop --target jztree_cpu
mkdir -p jztree/lib
cp build/develop/jztree/native/common/cpu/libjztree_cpu.so jztree/lib
endef
first_set = $(if $(filter x86_64,$(HERE)),$(if $(filter-out NATIVE,$(JZTREE_INSTRUCTION_SETS)),JZTREE_INSTRUCTION_SET=x86-64-v2))

# The most cases of one test that `make test` runs; 0: all, as when ARGS picks tests.
CASES ?= $(if $(ARGS),0,2)

# The machine that a wheel is for: another one than this needs Debian's cross-compiler for it.
HERE := $(shell uname -m)
MACHINE ?= $(HERE)
cross_compile = $(if $(filter-out $(HERE),$(MACHINE)),CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=$(MACHINE) \
  -DCMAKE_CXX_COMPILER=$(MACHINE)-linux-gnu-g++ -DJZTREE_WERROR=$(JZTREE_WERROR)")
# The number of a wheel with CUDA kernels, by the generation of CUDA that compiles them.
cuda_tag = $(if $(filter ON,$(JZTREE_CUDA)),SKBUILD_WHEEL_BUILD_TAG=1cuda$$("$${CUDACXX:-nvcc}" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p'))

# Where the compiler has a library of its runtime.
runtime = $$($(CXX) -print-file-name=$(1))

EMULATOR_SEEDS ?= 0 1 2 3 4
# The most dimensions that the emulator's kernels are compiled for.
JZTREE_EMULATED_DIMS ?= 8

# Compiles the emulator's library $(1); runs the tests with one of the markers $(2) (separated by |), with pytest's arguments $(3).
emulate = $(BIN)/cmake --build build/develop --target jztree_cpu_$(1) && \
  cp build/develop/tests/native/cuda_emulator/libjztree_cpu_$(1).so jztree/lib && \
  JZTREE_INSTRUCTION_SET=$(1) $(BIN)/pytest -n auto --dist worksteal $(3) -m "($(subst |, or ,$(2))) and not slow" \
  $$(grep -lE "mark\.($(2))\b" tests/test_*.py)

.PHONY: demo develop docs oracles test test-all test-emulated test-emulated-core test-watched test-emulated-all fuzz fuzz-sanitized faults lint format bench profile gpu-check aarch64 wheel cross-compiler clean

# The first time, one library is compiled before all others, because it does for the result.
is_compiled := $(wildcard jztree/lib/libjztree_cpu.so)
demo: $(VENV)/ready ## Find the halos of a real N-body snapshot and draw them.
	$(if $(is_compiled),@$(MAKE) develop,$(first_library))
	mkdir -p demo
	$(if $(is_compiled),,$(first_set)) $(BIN)/jztree fof sample --output demo/halos.hdf5 --plot demo/halos.png
	@$(MAKE) develop

docs: develop ## The documentation as a site, build/docs/html/index.html; every warning is an error.
	$(call install_needs,docs)
	$(BIN)/sphinx-build -W -q -b html docs build/docs/html

test: develop ## The tests that take seconds, the same cases on every commit; ARGS="tests/test_knn.py -k ties" picks some.
	$(BIN)/pytest -n auto --dist worksteal --cases-of-each $(CASES) $(ARGS)

oracles: $(VENV)/ready ## Corrfunc, whose pair counts tests compare with; it compiles, and needs GSL (gsl-config) for that.
	$(call install_needs,oracles)

test-all: develop ## Also those that take minutes.
	$(call install_needs,tables readers)
	JZTREE_TESTS_OPTIMIZED=1 $(BIN)/pytest -n auto --dist worksteal -m "slow or not slow"

test-emulated: develop ## The library's tests with the CUDA kernels, run by an emulator; no GPU is needed.
	$(call emulate,cuda-emulated,emulated)

test-emulated-core: develop ## Some of them.
	$(call emulate,cuda-emulated,core,--cases-of-each $(CASES))

test-watched: develop ## Some of them with an emulator that finds races between threads of CUDA, and counts sectors of memory.
	$(call emulate,cuda-watched,core|watched)

test-emulated-all: develop ## All of them with five orders of threads and blocks, and the watched ones with two.
	set -e; for seed in $(EMULATOR_SEEDS); do JZTREE_EMULATOR_SEED=$$seed $(MAKE) test-emulated; done
	set -e; for seed in 0 1; do JZTREE_EMULATOR_SEED=$$seed $(MAKE) test-watched; done

fuzz: develop ## Random hostile input for ten minutes, judged by slow oracles; ARGS="--help" says what can be chosen.
	$(BIN)/python tests/fuzz --seconds 600 $(ARGS)

# The sanitizer's own runtime must be there before all others, and the C++ one, whose exceptions it has to see.
fuzz-sanitized: develop ## The same with a CPU library that ends the program at bad addresses and undefined behaviour.
	$(BIN)/cmake --build build/develop --target jztree_cpu_sanitized
	cp build/develop/jztree/native/common/cpu/libjztree_cpu_sanitized.so jztree/lib
	LD_PRELOAD="$(call runtime,libasan.so) $(call runtime,libstdc++.so)" ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
	  JZTREE_INSTRUCTION_SET=sanitized $(BIN)/python tests/fuzz --seconds 600 $(ARGS)

faults: develop ## A thousand faults in programs of several processes, and judges of how these end; ARGS="--help" says what can be chosen.
	$(BIN)/python -P tests/faults $(ARGS)

lint: $(VENV)/linters ## Format, lint and types, for Python and C++.
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	$(BIN)/mypy && $(BIN)/mypy tests/typed_script.py
	find jztree/native tests/native \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 $(BIN)/clang-format --dry-run --Werror

format: $(VENV)/linters
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .
	find jztree/native tests/native \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 $(BIN)/clang-format -i

bench: develop ## Speed beside other libraries, stages, memory, hard inputs and cliffs; ARGS="--help" says what can be chosen.
	$(call install_needs,benchmark)
	$(BIN)/python checks/benchmarks/against_peers.py $(ARGS)
	$(BIN)/python checks/benchmarks/one_device.py
	$(BIN)/python checks/benchmarks/radius.py $(filter --record,$(ARGS))
	$(BIN)/python checks/benchmarks/cliffs.py

profile: develop ## Time, rows sent and rounds over four host devices, as ratios to one.
	$(BIN)/python checks/profiling/multi_device.py --host-devices 4

gpu-check: ## What only a GPU can show; needs JAX for CUDA and nvcc, and no network. ARGS="--help" says what can be chosen.
	$(PYTHON) checks/gpu $(ARGS)

# auditwheel looks at what the libraries ask of the system, names the wheel by it, and fails if it cannot stand alone. A
# wheel with CUDA kernels holds all of the plain one, and its number makes pip prefer it; the number says which CUDA.
wheel: $(VENV)/bin/python $(if $(cross_compile),cross-compiler) ## A wheel in dist/ that installs without a compiler; JZTREE_CUDA=ON in front for one with the GPU kernels.
	$(call install_needs,wheel)
	rm -rf build/wheel
	$(cuda_tag) $(cross_compile) $(BIN)/pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(if $(cross_compile),$(BIN)/wheel tags --remove --platform-tag linux_$(MACHINE) build/wheel/*.whl)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/wheel/*.whl

cross-compiler:
	@test "$(JZTREE_CUDA)" != ON || { echo "GPU kernels for $(MACHINE) are compiled there: JZTREE_CUDA=ON make wheel" >&2; exit 1; }
	@command -v $(MACHINE)-linux-gnu-g++ > /dev/null || { echo "a wheel for $(MACHINE) needs $(MACHINE)-linux-gnu-g++," \
	  "which is not on this machine; on Debian: apt-get install g++-$(subst _,-,$(MACHINE))-linux-gnu" >&2; exit 1; }

aarch64: develop ## A wheel for aarch64 by Debian's cross-compiler, and tests of it under qemu-user: g++-aarch64-linux-gnu and qemu-user are needed.
	$(MAKE) wheel MACHINE=aarch64 JZTREE_CUDA=OFF JZTREE_WERROR=ON
	checks/aarch64.sh $(BIN)/python

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The sources themselves are what is imported in .venv, and in this folder: an edit of Python needs nothing, one of C++
# compiles what depends on it.
develop: $(VENV)/ready ## Compile what has changed, for this machine, and use it from this folder.
	@$(configure)
	@$(BIN)/cmake --build build/develop
	@rm -f jztree/lib/libjztree_*.so # of other instruction sets, which nobody would build again
	@$(BIN)/cmake --install build/develop --prefix . > build/install.log

$(VENV)/ready: pyproject.toml | $(VENV)/bin/python
	@echo "setting up $(VENV); compiling the library comes next, which takes about a minute"
	@mkdir -p build
	$(BIN)/pip uninstall --quiet --yes jztree 2> build/uninstall.log
	$(call install_needs,plot test develop)
	$(BIN)/python -c "import pathlib, sysconfig; pathlib.Path(sysconfig.get_path('purelib'), 'jztree-develop.pth').write_text('$(CURDIR)\n')"
	printf '#!%s\nimport sys\n\nfrom jztree_utils.cli import main\n\nsys.exit(main())\n' "$(abspath $(BIN))/python" > $(BIN)/jztree
	chmod +x $(BIN)/jztree
	touch $@

$(VENV)/linters: $(VENV)/ready
	$(call install_needs,lint)
	touch $@

clean:
	rm -rf $(VENV) build demo dist docs/gallery
