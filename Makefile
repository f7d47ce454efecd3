# a fresh machine needs `make demo` and `make test` only
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test test-all test-gpu-kernels test-page test-clients soak check docs bench bench-once

help:
	@echo "make demo     decode real prompts plainly and with drafts, and compare the texts"
	@echo "make test     the tests of every change, ten minutes to half an hour on two cores; make test-all: all of them"
	@echo "make setup    install into $(VENV), as the two above do first"
	@echo "make check    style, types, layers and documentation; make docs: write what is generated"
	@echo "make bench    the records in benchmarks/ and their pages, on this machine"
	@echo "make test-gpu-kernels, test-page, test-clients, soak: what needs Triton, a browser, npm, half an hour"

setup: $(VENV)/.ready

# whether there is an environment with a Python that is new enough
RECENT := $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(RECENT) || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Paceline needs Python 3.11 or newer: make PYTHON=python3.12 ..."; exit 2; }
	$(RECENT) || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/python examples/demo.py

# a process of tests for each core; but servers under load, and whatever takes the time, have the machine to themselves
SIDE_BY_SIDE := -n auto --maxprocesses 8 --ignore tests/serve --ignore tests/bench
ALONE := tests/serve tests/bench

test: setup
	$(BIN)/python -m pytest -m "not full" $(SIDE_BY_SIDE)
	$(BIN)/python -m pytest -m "not full" $(ALONE)

test-all: setup test-gpu-kernels
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)
	$(BIN)/python -m pytest $(ALONE)

# beside the environment, not in it: transformers would import it into every process (ADR 0006)
TRITON := build/triton

$(TRITON)/.ready: $(VENV)/.ready
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --upgrade --target $(TRITON) triton==3.7.1
	touch $@

test-gpu-kernels: setup $(TRITON)/.ready
	PYTHONPATH=$(TRITON) $(BIN)/python -m pytest tests/kernels

# in a real browser: Chromium and its driver must be there (Debian: chromium, chromium-driver)
test-page: setup
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest tests/serve/page

# other people's clients, in an environment of their own; npm is needed for the one for Node
CLIENTS := build/clients

$(CLIENTS)/.ready: tests/clients/requirements.txt tests/clients/package.json
	$(PYTHON) -m venv --clear $(CLIENTS)/venv
	$(CLIENTS)/venv/bin/python -m pip install -q --disable-pip-version-check -r tests/clients/requirements.txt
	cp tests/clients/package.json $(CLIENTS)/ && cd $(CLIENTS) && npm install --silent --no-audit --no-fund
	touch $@

test-clients: setup $(CLIENTS)/.ready
	$(BIN)/python tests/clients/run.py $(abspath $(CLIENTS))

# half an hour of mixed load on the server
soak: setup
	$(BIN)/python tests/serve/soak.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

docs: setup
	$(BIN)/python docs/generate.py

# an hour or more of a quiet machine, half of it with THREADS=1; peers run where `pip install -e '.[peers]'` was done before
# (llama.cpp is compiled by it; on processors with AMX it has been seen to crash on 8-bit weights,
# CFLAGS=-mno-amx-int8 CXXFLAGS=-mno-amx-int8 avoids it).
# RECORDS=benchmarks/NAME keeps the runs of another machine beside those that are there; demonstration, steps and server are
# recorded of one machine alone
RECORDS ?= benchmarks
THREADS ?= 1 2
SMALLER := model:"paceline-14m-draft"
MODEL_DRAFT := --draft '$(SMALLER),depth=5@w8a8'
GROWN := --grow 16x768 --tasks e2e,sql --context 320 --max-tokens 64 --draft auto $(MODEL_DRAFT) --limit 4 --repeats 3
LARGER := --grow 20x1536 --tasks e2e,sql --context 320 --max-tokens 64 --draft auto $(MODEL_DRAFT) --limit 2 --repeats 2
OTHERS := llama.cpp,ctranslate2,openvino
# every drafter, and every verifier that keeps the text or its distribution, under one clock
SIDE := --threads 1 --grow 16x768 --weights w16a16 --limit 4
DRAFTERS := ngram suffix reference recycle lookahead jacobi bigram unigram $(SMALLER),depth=5@w8a8 $(SMALLER),tree=static@w8a8 \
	$(SMALLER),tree=dynamic@w8a8 $(SMALLER),depth=5,samples=3@w8a8 ngram+$(SMALLER),depth=5@w8a8 ngram^$(SMALLER),depth=5@w8a8 auto
RULES := match rejection block multi-round k-seq spechub

# answers of the embedded model alone take some ten milliseconds, so each is measured nine times
bench: $(if $(filter benchmarks,$(RECORDS)),bench-once) setup
	for threads in $(THREADS); do \
		$(BIN)/paceline bench --threads $$threads --draft auto --draft ngram $(MODEL_DRAFT) --limit 4 --batch 4,16 --repeats 9 --out $(RECORDS) && \
		$(BIN)/paceline bench --threads $$threads $(GROWN) --weights int8 --peers $(OTHERS) --batch 4,16 --out $(RECORDS) && \
		$(BIN)/paceline bench --threads $$threads $(GROWN) --weights fp32 --peers transformers,$(OTHERS) --out $(RECORDS) && \
		for weights in fp16 w16a16 w8a8 w4a8; do \
			$(BIN)/paceline bench --threads $$threads $(GROWN) --weights $$weights --peers $(OTHERS) --out $(RECORDS) || exit; \
		done || exit; \
	done
	for weights in int8 int4 w4a8; do \
		$(BIN)/paceline bench --threads $(lastword $(THREADS)) $(LARGER) --weights $$weights --peers $(OTHERS) --out $(RECORDS) || exit; \
	done
	$(BIN)/paceline bench --name methods $(SIDE) --repeats 3 $(patsubst %,--draft '%',$(DRAFTERS)) --out $(RECORDS)
	$(BIN)/paceline bench --name rules $(SIDE) --repeats 2 --tasks e2e,story,copy --temperature 1 \
		$(MODEL_DRAFT) --draft '$(SMALLER),depth=5,samples=3@w8a8' \
		$(patsubst %,--verify %,$(RULES)) --out $(RECORDS)
	$(BIN)/python -m paceline.bench.page benchmarks docs

bench-once: setup
	$(BIN)/python examples/demo.py --out benchmarks/demo.json
	$(BIN)/python benchmarks/step_overhead.py --out benchmarks/step_overhead.json \
		--plot docs/images/step_overhead.png --lookup-plot docs/images/look_ups.png
	rm -f benchmarks/serve-*.json
	$(BIN)/python benchmarks/serve.py benchmarks
