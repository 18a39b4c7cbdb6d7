# Everything a fresh machine needs: each target sets up its own environment in .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

setup: $(VENV)/.installed ## install into .venv

train: setup ## train a detector on the embedded set, in minutes on two CPU cores
	$(BIN)/python train.py experiment=demo

lint: setup ## ruff, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint ## lint and the fast tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow"

test: lint ## lint and every test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

pictures: setup ## train the demos and write the pictures in docs/images
	$(BIN)/python -m benchmarks.docs_images

clean: ## remove the environment and caches, never outputs/
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info

.PHONY: help setup train lint check test pictures clean
