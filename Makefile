# `make demo` and `make test` need Python 3.11+, make and a C++17 compiler. They create the environment $(VENV);
# `make test PYTHON=python3.13 VENV=.venv-3.13` uses another Python. ARGS are for the program that a target runs.
PYTHON ?= python3
VENV ?= .venv
CASES ?= $(if $(ARGS),0,1)# of each test that is not marked fast; 0: all
BIN := $(abspath $(VENV))/bin
active := VIRTUAL_ENV="$(abspath $(VENV))" PATH="$(BIN):$$PATH"# runs a command as in the active environment
pip := $(BIN)/pip install --quiet
pytest := $(active) PYTHONDONTWRITEBYTECODE= pytest -n auto --dist worksteal# all processes would compile the sources
build := $(active) cmake --build --preset
configure = @mkdir -p build demo && $(active) CUDAARCHS="$${CUDAARCHS:-native}" cmake --preset dev \
  --log-level=WARNING -DJZTREE_CUDA=$(or $(JZTREE_CUDA),$(if $(shell command -v nvidia-smi),AUTO,OFF)) \
  -DJZTREE_INSTRUCTION_SETS=$(or $(JZTREE_INSTRUCTION_SETS),NATIVE) -DJZTREE_WERROR=$(or $(JZTREE_WERROR),OFF) \
  -DJZTREE_EMULATED_DIMS=$(or $(JZTREE_EMULATED_DIMS),8) \
  -DJZTREE_SANITIZED_SET=$(JZTREE_SANITIZED_SET) >build/configure.log
# Run tests with the emulator's library $(1): those with one of the markers $(2), with the pytest arguments $(3).
emulate = $(build) $(1) && JZTREE_INSTRUCTION_SET=cuda-$(1) $(pytest) $(3) -m "($(subst |, or ,$(2))) and not slow" \
  $$(grep -lE "mark\.($(2))\b" tests/*/test_*.py)
.PHONY: $(shell sed -n 's/^\([a-z][a-z -]*\):.*/\1/p' Makefile)

demo: $(VENV)/ready # The result needs only some kernels, which are compiled first.
	$(configure)
	test -e jztree/lib/libjztree_cpu.so || { $(build) dev --target first && cp build/dev/first/*.so jztree/lib; }
	$(BIN)/jztree fof sample --output demo/halos.hdf5 --plot demo/halos.png
	$(build) dev
develop: $(VENV)/ready $(VENV)/group-test
	$(configure)
	@$(build) dev
docs: develop $(VENV)/group-docs
	$(active) sphinx-build -W -q -b html docs build/docs/html
test: develop
	$(pytest) --cases-of-each $(CASES) $(ARGS)
test-all: develop $(VENV)/group-readers
	JZTREE_TESTS_OPTIMIZED=1 $(pytest) -m "slow or not slow"
test-emulated: develop
	$(call emulate,emulated,emulated)
test-emulated-core: develop
	$(call emulate,emulated,core,--cases-of-each $(CASES))
test-watched: develop
	$(call emulate,watched,core|watched)
test-emulated-all: develop
	for seed in 0 1 2 3 4; do JZTREE_EMULATOR_SEED=$$seed $(MAKE) test-emulated || exit; done
	for seed in 0 1; do JZTREE_EMULATOR_SEED=$$seed $(MAKE) test-watched || exit; done
fuzz: develop
	$(BIN)/python tests/fuzz --seconds 600 $(ARGS)
fuzz-emulated: develop
	$(build) emulated && JZTREE_INSTRUCTION_SET=cuda-emulated $(BIN)/python tests/fuzz --seconds 600 $(ARGS)
fuzz-sanitized: develop
	$(build) sanitized && checks/sanitized.sh $(BIN)/python tests/fuzz --seconds 600 $(ARGS)
lint format: $(VENV)/group-lint
	$(active) pre-commit run --all-files --show-diff-on-failure
bench: develop $(VENV)/group-benchmark
	$(active) checks/benchmarks/all.sh $(ARGS)
profile: develop
	$(BIN)/python checks/profiling/multi_device.py --host-devices 4
gpu-check:
	$(PYTHON) checks/gpu $(ARGS)
wheel: $(VENV)/group-wheel
	$(active) checks/wheel.sh
aarch64: develop $(VENV)/group-wheel
	$(active) JZTREE_CUDA=OFF JZTREE_WERROR=ON MACHINE=aarch64 checks/wheel.sh && checks/aarch64.sh $(BIN)/python
oracles: $(VENV)/group-oracles
clean:
	rm -rf $(VENV) build demo dist docs/gallery jztree/lib

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(pip) --upgrade "pip>=25.1" && $(pip) --group build
	$(pip) --no-build-isolation --config-settings=wheel.cmake=false --editable ".[plot]" && touch $@
$(VENV)/group-%: $(VENV)/ready
	$(pip) --group $* && touch $@
