# Two commands need nothing but Python and make: `make demo` and `make test`.
# A prebuilt environment is used when one is given: make test VENV=/path/to/venv

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROCESSES ?= $(shell $(PYTHON) -c "import os; print(max(1, min(4, os.cpu_count() or 1)))")
PLUGINS := $(sort $(wildcard plugins/*))
EDITABLE := -e ".[export,fast-eval,tensorboard,dev]" $(foreach p,$(PLUGINS),-e $(p))
CHECKED := libreyolo libreyolo_core plugins tests benchmarks docs

.PHONY: env demo test lint types docs wheels bench clean

env: $(VENV)/.ready

# Reinstalled whenever a package's metadata changes.
$(VENV)/.ready: pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch torchvision
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(EDITABLE)
	touch $@

demo: env
	$(BIN)/libreyolo demo

# One thread per test process: thousands of tiny operations cost more to share among threads than to do.
test: env lint types docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup

lint: env
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check --quiet $(CHECKED)

types: env
	$(BIN)/mypy

docs: env
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheels: env
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist . $(PLUGINS)
	ls -1 dist

bench: env
	$(BIN)/python benchmarks/operations.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/loader.py

clean:
	rm -rf dist build site .mypy_cache .pytest_cache .ruff_cache
