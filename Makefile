# Two commands matter: `make demo` and `make test`. Both build the environment if it is not there yet.
VENV   ?= .venv
# The first Python that really runs and is new enough; `command -v` also finds shims of versions that are not active.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
BIN    := $(VENV)/bin
USE    := $(VENV)/.installed-report
STAMP  := $(VENV)/.installed-dev

.PHONY: demo test exhaustive lint docs bench page clean
demo: $(USE)
	$(BIN)/ct demo --out demo

# Three processes, because some tests wait more than they compute; each test file runs in one of them, in the order of
# their names: the last ones are short, so that all processes end at about the same time. `exhaustive` runs what repeats
# these tests on more cases, and what takes long. Bytecode is kept, or each of the many processes compiles the package.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
test: $(STAMP)
	$(PYTEST)

exhaustive: $(STAMP)
	$(PYTEST) -m exhaustive

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, from docs/ and the code: reference pages and notebooks anew, strictly built, every link followed.
docs: $(STAMP)
	$(BIN)/python -m tools.site

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The script and style of `ct serve`, from their TypeScript source; the result is committed. Needs node and npm.
PAGE := src/counterfactual_training/serve/page
page:
	cd $(PAGE) && npm ci --no-audit --no-fund && npm run build

# What the demo needs, and what developing needs on top; each is installed once per pyproject.toml.
$(USE): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[report,serve]'
	@touch $@

$(STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(USE)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and none was found; name one with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) demo build dist site .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
