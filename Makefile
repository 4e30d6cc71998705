# Everything on a fresh machine with Python 3.11 or later: `make demo`, `make test`, `make lint`, in any order.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-hf lint format clean

help:
	@echo "make demo       train a small English-German model (minutes), translate with it, look at its attention"
	@echo "make test       the specifications, a few minutes"
	@echo "make test-slow  the ones that take longer"
	@echo "make test-hf    transformers' own tests of models and tokenizers, run on ours"
	@echo "make lint       formatting, lint and types"

# A virtual environment in .venv with the library, its programs and the tools, at the versions of constraints.txt.
install: .venv/installed
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; v = sys.version_info; sys.exit(v < (3, 11) and f'Python 3.11 or later is needed; {sys.executable} is {v[0]}.{v[1]}')"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

demo: install
	$(BIN)/vaswani-transformer demo $(DEMO)

test: install
	$(BIN)/pytest -m "not slow" $(TESTS)

test-slow: install
	$(BIN)/pytest -m slow -n 1 $(TESTS)

test-hf: install
	$(BIN)/python tests/hf/fetch.py
	cd tests/hf && HF_HUB_OFFLINE=1 ../../$(BIN)/pytest --import-mode=importlib

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
