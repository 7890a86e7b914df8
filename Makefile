# Everything a developer or CI runs. Each target sets up what it needs in $(VENV) first.
#   make VENV=.venv-3.12 PYTHON=python3.12 test   runs the tests on another interpreter
VENV ?= .venv
BIN := $(VENV)/bin
# Test processes side by side: many tests wait for a process of their own, so two are faster than one on any machine.
JOBS ?= 2
# make COVERAGE="--cov --cov-report=term" test   measures coverage too, which takes half as long again
COVERAGE ?=
READY := $(VENV)/.ready

.PHONY: help demo test prove check bench soak format clean
help:
	@echo "make demo    run the main job (DEMO_SECONDS=8 ends it by itself)"
	@echo "make test    all tests but the long repeats, under three minutes"
	@echo "make check   format, lint, types, import direction"
	@echo "make prove   chaos, storms and long repeats; then all tests five times over"
	@echo "make bench   speed, as ratios in one run"
	@echo "make soak    stress, run after run, until one fails (RUNS=20, SEED=… repeats)"
	@echo "make format  rewrite the files as 'make check' wants them"

$(READY): pyproject.toml scripts/find-python
	"$${PYTHON:-$$(sh scripts/find-python)}" -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"  # 25.1 brought --group
	PYTHONWARNINGS="ignore:Compat editable installs" $(BIN)/python -m pip install --quiet \
	    --group dev --config-settings editable_mode=compat --editable .  # the other modes hide the types from checkers
	touch $(READY)

demo: $(READY)
	@$(BIN)/python examples/demo.py

test: $(READY)
	$(BIN)/pytest -m "not prove" --numprocesses=$(JOBS) --dist=worksteal $(COVERAGE)

prove: $(READY)
	$(BIN)/pytest -m prove --timeout=900
	sh scripts/repeat 3 1 1

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(READY)
	@missed=0; for part in control_plane mailbox supervision shutdown session simulation; do \
	    $(BIN)/python benchmarks/$$part.py || missed=1; done; exit $$missed

soak: $(READY)
	@$(BIN)/python scripts/soak

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-* build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
