# Everything one does with this tree; `make` alone lists it.
.DEFAULT_GOAL := help
PYTHON ?= python3# makes .venv; 3.11 or newer
HOSTS ?= 2# of the lab
BIN := .venv/bin

help: ## List the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: venv ## Audit this machine, then train on two nodes of it
	$(BIN)/python -m orchestrate demo

test: venv ## Run the tests; those that need an engine run where one answers (MUSTER_LAB=1: must run)
	$(BIN)/python -m pytest -q

lint: venv ## Check style and formatting
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

fix: venv ## Repair what can be repaired
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

types: venv ## Check types
	$(BIN)/mypy

bench: venv ## Measure against limits and peers, one script after the other
	@set -e; for script in bench/*.py; do $(BIN)/python "$$script"; done

lab-up: venv ## Bring up real hosts to test on, HOSTS=2, and the image to train with (root, a Docker Engine)
	$(BIN)/python tests/lab/lab.py up --hosts $(HOSTS)
	$(BIN)/python -m orchestrate build --variant cpu --base muster-lab-base

lab-down: ## Remove every trace of them
	$(PYTHON) tests/lab/lab.py down

venv: .venv/ready ## Make the virtual environment .venv

.venv/ready: pyproject.toml requirements/dev.lock requirements/train-cpu.lock requirements/train-cuda.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --require-hashes -r requirements/dev.lock
	$(BIN)/pip install -q --require-hashes -r requirements/train-$$(requirements/variant.sh $(BIN)/pip).lock
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	touch $@

.PHONY: help demo test lint fix types bench lab-up lab-down venv
