# Two commands matter: `make sweep` measures, `make test` checks the tree. Everything lives in .venv, which belongs to
# make: it is rebuilt when one of the variables below changes and updated when pyproject.toml does.

PYTHON ?= python3
# Installed first and alone, so that nothing else decides which torch is used. Words are passed on to pip, so another
# build of it can be named: make sweep TORCH='torch==2.13.0+cpu --find-links wheels'
TORCH ?= torch==2.13.0
# A machine with an NVIDIA GPU: EXTRAS=gpu,dev
EXTRAS ?= engine,dev
SWEEP_ARGS ?= --concurrency 1,4,16
PYTEST_ARGS ?= -n 2 --dist loadfile

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check

# What the stamp must say. The checkout's own path is part of it: an editable install of a moved checkout would run
# the code at the old place.
WANTED := $(CURDIR) $(PYTHON) $(TORCH) $(EXTRAS)
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(WANTED))
$(STAMP): FORCE
endif

.DEFAULT_GOAL := help
.PHONY: FORCE help sweep test lint check clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-6s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

sweep: $(STAMP)  ## prove and measure every arm on this machine, print the table and the report's path
	@$(BIN)/ddbench sweep $(SWEEP_ARGS)

test: $(STAMP)  ## the test suite
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP)  ## ruff (rules and format) and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

check: lint test  ## lint and test

clean:  ## remove .venv, caches and build outputs; runs/ stays
	@rm -rf $(VENV) build dist ddbench.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find ddbench kernels reference experiments tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON): not found; ddbench needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "$(PYTHON) is Python %d.%d; ddbench needs 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3" % sys.version_info[:2])'
	@if [ "$$(cat $@ 2>/dev/null)" != "$(WANTED)" ]; then \
	    echo "creating $(VENV) with $$($(PYTHON) --version)" && $(PYTHON) -m venv --clear $(VENV); fi
	@echo "installing $(firstword $(TORCH)) (the largest download; minutes on a slow line)"
	@$(PIP) $(foreach word,$(TORCH),'$(word)')
	@echo "installing ddbench[$(EXTRAS)]"
	@$(PIP) -e '.[$(EXTRAS)]'
	@echo "$(WANTED)" > $@
