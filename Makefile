# Everything a developer or CI runs. Each target sets up what it needs in $(VENV) first.
#   make VENV=.venv-3.12 PYTHON=python3.12 test   runs the tests on another interpreter
VENV ?= .venv
BIN := $(VENV)/bin
# Test processes side by side: many tests wait for a process of their own, so two are faster than one on any machine.
JOBS ?= 2
# make COVERAGE="--cov --cov-report=term" test   measures coverage too, which takes half as long again
COVERAGE ?=
# The warnings of pip are about itself: its cache, its version. Errors are told all the same.
INSTALL := $(BIN)/python -P -m pip --disable-pip-version-check -qq install

.PHONY: help demo test prove check bench soak format clean
.NOTPARALLEL:  # two installs at once would spoil $(VENV), also with make -j
help:
	@echo "make demo    run the main job (DEMO_SECONDS=8 ends it by itself)"
	@echo "make test    all tests but the long repeats, under three minutes"
	@echo "make check   format, lint, types, import direction"
	@echo "make prove   chaos, storms and long repeats; then all tests five times over"
	@echo "make bench   speed, as ratios in one run"
	@echo "make soak    stress, run after run, until one fails (RUNS=20, SEED=… repeats)"
	@echo "make format  rewrite the files as 'make check' wants them"

# What is installed has a stamp in $(VENV). A change of pyproject.toml clears $(VENV), and all stamps with it.
$(VENV)/.source: pyproject.toml scripts/find-python scripts/from_source.py
	"$${PYTHON:-$$(sh scripts/find-python)}" -m venv --clear $(VENV)
	$(BIN)/python scripts/from_source.py >$(VENV)/requirements.txt
	$(INSTALL) --requirement $(VENV)/requirements.txt
	@touch $@

# pytest finds our plugin by its entry point, which only an install has
$(VENV)/.package: $(VENV)/.source
	$(INSTALL) --upgrade "pip>=25.1"  # 25.1 brought --group
	$(INSTALL) --editable .
	@touch $@

# The groups of pyproject.toml
$(VENV)/.test $(VENV)/.lint $(VENV)/.types: $(VENV)/.%: $(VENV)/.package
	$(INSTALL) --group $*
	@touch $@

# DEMO_URL=redis://localhost:6379/0 make demo    has its mailboxes there; the client comes with the test group
demo: $(VENV)/.source $(if $(DEMO_URL),$(VENV)/.test)
	@$(BIN)/python examples/demo.py

test: $(VENV)/.test
	$(BIN)/pytest -m "not prove" --numprocesses=$(JOBS) --dist=worksteal $(COVERAGE)

prove: $(VENV)/.test
	$(BIN)/pytest -m prove --timeout=900
	sh scripts/repeat 3 1 1

check: $(VENV)/.lint $(VENV)/.types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(VENV)/.test
	@missed=0; for part in control_plane mailbox coroutines servers postgres supervision shutdown session simulation; do \
	    $(BIN)/python benchmarks/$$part.py || missed=1; done; exit $$missed

soak: $(VENV)/.source
	@$(BIN)/python scripts/soak

format: $(VENV)/.lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-* build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
