# make up     set everything up, start a server and an agent on this machine
# make down   stop them
# make test   linters, types, layers and all tests
#
# STATE=DIR     another state directory        LISTEN=ENDPOINT  where the server listens
# PYTHON=…      a Python of 3.11 or later      VENV=DIR         another virtual environment

VENV ?= .venv
STATE ?=
LISTEN ?=
BIN := $(VENV)/bin
CALL := $(BIN)/cortextx $(if $(STATE),--state-dir $(STATE))
PACKAGING := setup.cfg pyproject.toml
FIND := for p in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done

.PHONY: up down test lint types layers tests smoke bench clean

up: $(VENV)/.installed
	@$(CALL) up $(if $(LISTEN),--listen $(LISTEN))

down:
	@if [ -x $(BIN)/cortextx ]; then $(CALL) down; else echo "nothing is installed"; fi

test: lint types layers tests

lint: $(VENV)/.developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.developed
	$(BIN)/mypy

layers: $(VENV)/.developed
	$(BIN)/lint-imports --no-cache

tests: $(VENV)/.developed
	$(BIN)/python .ci/trial.py tests

smoke: $(VENV)/.developed
	$(BIN)/python -m tests.integration.packaging

bench: $(VENV)/.developed
	@for b in $$(grep -l "__main__" bench/*.py); do echo "== $$b"; $(BIN)/python $$b || exit 1; done

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
		.tox _trial_temp* twisted/plugins/dropin.cache
	find cortextx tests bench twisted -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@found=$$($(FIND)); \
	if [ -z "$$found" ]; then echo "Python 3.11 or later is needed; name one with PYTHON=" >&2; exit 1; fi; \
	echo "making $(VENV) with $$found"; \
	$$found -m venv $(VENV) || { rm -rf $(VENV); \
	echo "on Debian: apt-get install python3-venv" >&2; exit 1; }

# The stamps are newer than what says what to install, so nothing is installed twice.
$(VENV)/.installed: $(PACKAGING) | $(BIN)/python
	@echo "installing into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all]'
	@touch $@

$(VENV)/.developed: $(PACKAGING) | $(BIN)/python
	@echo "installing into $(VENV) what the tests need …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.installed
