# starpo: everything a user or CI runs. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KILLS ?= 10
DIR ?= ../shared/reference
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup train test test-fast check bench up kill-test mutants reference clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## create .venv and install the pinned packages

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps -r requirements.lock
	$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

train: setup  ## the quick start: StarPO on short Sokoban levels, minutes on two cores
	@$(BIN)/starpo train $(ARGS)

test: setup  ## the whole test suite
	$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

test-fast: setup  ## without the slow tests and those that need a server
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow and not server" $(ARGS)

check: setup  ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## measured speed, as ratios within one run
	@$(BIN)/python -m bench

up: setup  ## Prefect server, worker and MLflow on loopback until Ctrl-C
	@$(BIN)/starpo up

kill-test: setup  ## kill -9 a run at random moments; the result must not change
	@$(BIN)/python scripts/kill_test.py --kills $(KILLS)

mutants: setup  ## plant faults in the code; each must be caught by a test
	@$(BIN)/python scripts/mutants.py $(ARGS)

reference: setup  ## check reference numbers: make reference DIR=folder
	@$(BIN)/python scripts/reference.py $(DIR)

clean:  ## remove caches of tools; keeps .venv, the store and mlruns
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache build *.egg-info
