# SPDX-License-Identifier: Apache-2.0
# make            build, fetch the demo model, serve it on 127.0.0.1:PORT (8080); a mock if there is none
# make test       everything that must pass: native-test and python-test, slow tests named
# make lint       ruff, mypy, stubs against the native module, clang-format
# make bench      figures beside their limits, as rows in build/perf/*.jsonl
# make fuzz       the readers of untrusted files, SECONDS_EACH=30 for each of the three targets
# make long       tests that take minutes: a hundred deaths of a driver, every vice by every rule
# make sanitize   the native tests under ASan with UBSan, then under TSan
# make clean      removes the venv and all builds
# PYTHON chooses the interpreter, CXX the compiler, VENV the venv.
PYTHON ?= python3
VENV ?= .venv
PORT ?= 8080
SECONDS_EACH ?= 30
BIN := $(VENV)/bin
NATIVE := pyproject.toml CMakeLists.txt tools/setup_venv.py \
          $(shell find csrc -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.inc' -o -name '*.c' -o -name 'CMakeLists.txt' -o -name '*.cmake' \) -not -path 'csrc/tests/*')
NATIVE_TESTS := $(shell find csrc/tests -type f -not -path 'csrc/tests/fuzz/corpus/*')
NATIVE_BENCH := $(shell find benchmarks/native -type f 2>/dev/null)

.PHONY: demo test native-test python-test lint bench fuzz long sanitize clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.serve
	@$(BIN)/calrt model fetch smollm2 --quiet || test $$? -eq 2
	@exec $(BIN)/calrt-server --demo --port $(PORT)

test: native-test python-test

native-test: $(VENV)/.test
	@$(BIN)/python tools/native_tests.py

python-test: $(VENV)/.test
	@$(BIN)/python -m pytest -q -p no:benchmark -n auto --dist loadfile --durations=10 --durations-min=5

lint: $(VENV)/.test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest calrt._core --mypy-config-file pyproject.toml
	$(BIN)/clang-format --dry-run -Werror $$(find csrc benchmarks -name '*.cpp' -o -name '*.h' -o -name '*.c')

bench: $(VENV)/.test $(NATIVE_BENCH)
	@mkdir -p build/perf
	@$(BIN)/python tools/native_bench.py build/perf/native.jsonl
	$(BIN)/python -m pytest benchmarks -q --benchmark-only --perf-rows build/perf/python.jsonl

fuzz: $(VENV)/.test
	@$(BIN)/python tools/fuzz.py $(SECONDS_EACH)

long: $(VENV)/.test
	@CALRT_LONG=1 $(BIN)/python -m pytest -q -p no:benchmark tests/test_server_vices.py tests/test_calrt076_vices.py

sanitize: $(VENV)/.test
	@bash .ci/sanitize address,undefined
	@bash .ci/sanitize thread

# The stamps hold what was built; a newer source rebuilds incrementally.
$(VENV)/.serve: $(NATIVE)
	@$(PYTHON) tools/setup_venv.py $(VENV) serve
$(VENV)/.test: $(NATIVE) $(NATIVE_TESTS)
	@$(PYTHON) tools/setup_venv.py $(VENV) test

clean:
	rm -rf $(VENV) build dist
