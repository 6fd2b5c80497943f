# The two commands that matter are `make demo` and `make test`; each sets up, builds and runs.
#
# Without PYTHON=..., what is missing is installed: packages by apt, torch into .venv. With it, nothing is: the torch of
# that interpreter is used, and what is missing is named.

PRESET ?= release
SECONDS ?= 600
SINCE ?= HEAD
JOBS ?= $(shell nproc)
WERROR ?= $(filter dev,$(PRESET))
STOPS_AT_WARNINGS := $(filter-out 0 OFF off no,$(WERROR))
BUILD := build/$(PRESET)

ifdef PYTHON
  INTERPRETER := $(abspath $(shell command -v $(PYTHON)))
  ifeq ($(INTERPRETER),)
    $(error PYTHON=$(PYTHON) is no interpreter that can be found: give its path)
  endif
  TOOL_PYTHON := $(INTERPRETER)
  SETUP := $(TOOL_PYTHON) tools/setup.py --given
else
  INTERPRETER := $(CURDIR)/.venv/bin/python
  TOOL_PYTHON := python3
  SETUP := $(TOOL_PYTHON) tools/setup.py
endif

.PHONY: help demo test test-long test-newest gpu-test gpu-test-expandable alone fuzz bench build setup format format-check wheel install clean \
        require-gpu require-prefix FORCE

help: ## this list
	@echo 'make TARGET [PYTHON=python3] [PRESET=release|dev|asan] [JOBS=N]'
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{printf "  %-19s %s\n", $$1, $$2}'
	@echo 'WERROR=1 stops at a warning of the compiler, as continuous integration does.'
	@echo 'PYTHON=python3 uses the torch of that interpreter: no .venv, no network, nothing is installed.'

demo: $(BUILD)/.configured ## set up, build, and train a small GPT by graph replay
	@cmake --build $(BUILD) --parallel $(JOBS) --target pianola_program
	@$(BUILD)/apps/pianola demo

test: build ## set up, build, run the tests; ends with their counts
	@$(INTERPRETER) tools/run_tests.py $(PRESET) --label-exclude long

test-long: build ## the tests that take more than 20 s each: a sweep of operators, a soak, the wheel, people's programs
	@$(INTERPRETER) tools/run_tests.py $(PRESET) --label-regex long

test-newest: ## the C++ tests of the rooms with the newest torch that is known, in an environment of its own
	@python3 tools/matrix.py --newest --tests rooms

gpu-test: require-gpu build ## run the C++ and Python tests on a GPU, where no CUDA case may be skipped; TOGETHER=5 at once
	@PIANOLA_REQUIRE_CUDA=1 $(if $(TOGETHER),,PIANOLA_WHOLE_DEVICE=1) $(INTERPRETER) $(if $(TOGETHER),tools/tests_together.py $(PRESET) --jobs $(TOGETHER),\
	  tools/run_tests.py $(PRESET) --label-regex device)

gpu-test-expandable: require-gpu build ## the tests of graphs and their pools on a GPU, with torch's expandable segments
	@PIANOLA_REQUIRE_CUDA=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True $(INTERPRETER) tools/run_tests.py $(PRESET) --tests-regex '^graph$$'

alone: setup ## check that the C++ files that changed SINCE=HEAD compile alone; SINCE= for all
	@cmake --preset alone -DPIANOLA_PYTHON='$(INTERPRETER)' > build/alone.log || { cat build/alone.log; exit 1; }
	@$(INTERPRETER) tools/compile_alone.py --jobs $(JOBS) $(if $(SINCE),--since $(SINCE))

fuzz: setup ## run each fuzzer with sanitizers for SECONDS=600, driven by libFuzzer where there is clang
	@$(INTERPRETER) tools/fuzz.py --seconds $(SECONDS) --jobs $(JOBS)

bench: build ## build and run the benchmarks
	@$(BUILD)/bench/pianola_bench --json $(BUILD)/bench.json

build: $(BUILD)/.configured ## compile everything and check that each public header compiles alone
	@start=$$(date +%s); cmake --build --preset $(PRESET) --parallel $(JOBS) && \
	  echo "built in $$(( $$(date +%s) - start )) s"

setup: ## install what the build needs; with PYTHON=... only check that it is there
	@$(SETUP) $(if $(filter test test-long alone fuzz format format-check,$(MAKECMDGOALS)),--tests) $(if $(filter test-long,$(MAKECMDGOALS)),--zoo)

format: setup ## format the C++ sources
	@$(INTERPRETER) tools/format.py

format-check: setup ## fail if a C++ source is not formatted, as make test does
	@$(INTERPRETER) tools/format.py --check

wheel: setup ## build the Python package for the torch of the interpreter: dist/pianola-*.whl
	@$(INTERPRETER) -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir dist .
	@ls dist/pianola-*.whl

install: require-prefix build ## install the library: make install PREFIX=/where
	@cmake --install $(BUILD) --prefix '$(PREFIX)'

clean: ## remove what was built; .venv stays
	@rm -rf build dist

require-prefix:
	@test -n '$(PREFIX)' || { echo 'make: say where to install: make install PREFIX=/where' >&2; exit 1; }

require-gpu:
	@$(TOOL_PYTHON) tools/require_gpu.py

# Configured once, and again when the presets or the interpreter change; CMake itself sees to the rest.
$(BUILD)/.configured: CMakePresets.json $(BUILD)/.interpreter | setup
	@cmake --preset $(PRESET) -DPIANOLA_PYTHON='$(INTERPRETER)' -DPIANOLA_WERROR=$(if $(STOPS_AT_WARNINGS),ON,OFF)
	@touch $@

$(BUILD)/.interpreter: FORCE
	@mkdir -p $(@D)
	@echo '$(INTERPRETER)$(if $(STOPS_AT_WARNINGS), WERROR)' | cmp -s - $@ || echo '$(INTERPRETER)$(if $(STOPS_AT_WARNINGS), WERROR)' > $@
