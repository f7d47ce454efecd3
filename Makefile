# make setup, demo, test, test-all, check: a fresh machine needs `make demo` and `make test` only.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-all check docs

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Paceline needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 2; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest -m "not full"

test-all: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

docs: setup
	$(BIN)/python docs/generate.py
