# Two commands matter: `make demo` and `make test`. Both build the environment if it is not there yet.
VENV   ?= .venv
PYTHON ?= $(firstword $(shell command -v python3.13 python3.12 python3.11 python3))
BIN    := $(VENV)/bin
USE    := $(VENV)/.installed-report
STAMP  := $(VENV)/.installed-dev

.PHONY: demo test lint bench clean
demo: $(USE)
	$(BIN)/ct demo --out demo

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# What the demo needs, and what developing needs on top; each is installed once per pyproject.toml.
$(USE): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[report]'
	@touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(USE)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Python 3.11 or newer is needed, found %d.%d; set PYTHON=..." % v[:2])'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
