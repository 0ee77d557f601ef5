# SPDX-License-Identifier: Apache-2.0
# make demo   build, fetch the demo model, serve it on 127.0.0.1:8080
# make test   everything that must pass
PYTHON ?= python3
VENV ?= .venv
PORT ?= 8080
BIN := $(VENV)/bin
NATIVE := pyproject.toml CMakeLists.txt tools/setup_venv.py \
          $(shell find csrc -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.inc' -o -name '*.c' -o -name 'CMakeLists.txt' -o -name '*.cmake' \) -not -path 'csrc/tests/*')
NATIVE_TESTS := $(shell find csrc/tests -type f)

.PHONY: demo test native-test python-test lint bench clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.serve
	@$(BIN)/calrt model fetch smollm2 --quiet
	@exec $(BIN)/calrt-server --demo --port $(PORT)

test: native-test python-test

native-test: $(VENV)/.test
	@$(BIN)/python tools/native_tests.py

python-test: $(VENV)/.test
	@$(BIN)/python -m pytest -q

lint: $(VENV)/.test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest calrt._core --mypy-config-file pyproject.toml
	$(BIN)/clang-format --dry-run -Werror $$(find csrc -name '*.cpp' -o -name '*.h' -o -name '*.c')

bench: $(VENV)/.test
	$(BIN)/python -m pytest benchmarks -q --benchmark-only

# The stamps hold what was built; a newer source rebuilds incrementally.
$(VENV)/.serve: $(NATIVE)
	@$(PYTHON) tools/setup_venv.py $(VENV) serve
$(VENV)/.test: $(NATIVE) $(NATIVE_TESTS)
	@$(PYTHON) tools/setup_venv.py $(VENV) test

clean:
	rm -rf $(VENV) build dist
