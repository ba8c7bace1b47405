# Two commands matter: `make demo` and `make test`. Both build the environment if it is not there yet.
VENV   ?= .venv
# The first Python that really runs and is new enough; `command -v` also finds shims of versions that are not active.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
BIN    := $(VENV)/bin
# What is installed, by what needs it: the demo, the tests, everything else.
DEMO   := $(VENV)/.installed-demo
TEST   := $(VENV)/.installed-test
DEV    := $(VENV)/.installed-dev

.PHONY: demo test check lint docs bench page clean
demo: $(DEMO)
	$(BIN)/ct demo --out demo

# More processes than cores, because some tests wait more than they compute; each test file runs in one of them.
# Bytecode is kept, or each of the processes compiles the package.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
test: $(TEST)
	$(PYTEST) -n 3

# All that `make test` leaves out: pages, notebooks, browser, wheel, torchrun, Ray, PostgreSQL, every case of the laws;
# and golden files.
check: $(DEV)
	$(PYTEST) -n 3 -m check
	$(BIN)/python -m tools.golden

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, from docs/ and the code: reference pages and notebooks anew, strictly built, every link followed.
docs: $(DEV)
	$(BIN)/python -m tools.site

bench: $(DEV)
	$(BIN)/python -m benchmarks

# The script and style of `ct serve`, from their TypeScript source; the result is committed. Needs node and npm.
PAGE := src/counterfactual_serve/page
page:
	cd $(PAGE) && npm ci --no-audit --no-fund && npm run build

# Each is installed once per pyproject.toml. pip says what it is doing: torch alone is hundreds of megabytes.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e
$(DEMO): pyproject.toml | $(BIN)/python
	@echo "Installing what the demo needs into $(VENV), once; this takes a minute or two."
	$(INSTALL) '.[lab,serve]'
	@touch $@

$(TEST): pyproject.toml | $(BIN)/python
	@echo "Installing what the tests need into $(VENV), once; this takes a minute or two."
	$(INSTALL) '.[test]'
	@touch $@ $(DEMO)

$(DEV): pyproject.toml | $(BIN)/python
	@echo "Installing what developing needs into $(VENV), once; this takes two or three minutes."
	$(INSTALL) '.[dev]'
	@touch $@ $(TEST) $(DEMO)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; name one with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) demo build dist site .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
