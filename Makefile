# Every target sets up what it needs. `make help` lists the rest.
# Written for GNU make 3.81 or newer (macOS ships 3.81) and bash 3.2 or newer.

SHELL := /bin/bash
PRESET ?= quick
PORT ?= 8000
PYTHON ?= $(shell for python in python3.11 python3; do $$python -c pass 2>/dev/null && echo $$python && break; done)

# Container images forbid bytecode. Then each process would compile all its modules again: torch's take seconds.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SITE := _build/html
COMPILED := $(VENV)/.compiled
SCHEDULES := chapters/_static/schedules
BUILT_FROM := _build/.built-from

# What the site is made of. Contents count, not dates: a fresh checkout or a touched file rebuilds nothing. Nor do the
# caches that Python, numba and Jupyter keep beside the sources.
SITE_INPUTS = _config.yml _toc.yml requirements.lock pyproject.toml assignments chapters src experiments
CACHES = ! -path '*/__pycache__/*' ! -path '*/.ipynb_checkpoints/*' ! -name '.DS_Store'
FILES = find $(SITE_INPUTS) -type f $(CACHES) | LC_ALL=C sort | xargs cksum
# What else its experiments depend on: installed packages and the machine.
AROUND = ls $(VENV)/lib/python*/site-packages 2>/dev/null | grep '[.]dist-info$$'; uname -sr; getconf _NPROCESSORS_ONLN
CHECKSUM = { $(FILES); $(AROUND); } | cksum

# When this make began, also for those that it starts; what takes minutes says how many.
export BEGAN := $(or $(BEGAN),$(shell date +%s))
AFTER = $$(( ($$(date +%s) - BEGAN) / 60 )) min $$(( ($$(date +%s) - BEGAN) % 60 )) s

# Files in their order, not those of many tests first: the last ones are short, so that both workers end together.
WORKERS := --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: help env horovod-nccl experiments book pdf serve check format unit test test-all record golden golden-check \
    gpu-check lock clean checksum
.DELETE_ON_ERROR:
.NOTPARALLEL:  # prerequisites are made in their order, and nothing runs beside an experiment

help: ## Show this list
	@echo "From Broadcast to Two-Tree All-Reduce"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  make experiments PRESET=NAME   other parameters: experiments/presets/NAME.yaml"
	@echo "  make env PYTHON=PATH           another Python, 3.11 or newer"
	@echo "  make serve PORT=NUMBER         another port than 8000"

# Horovod is built here, because it is published as source only; where that cannot be done, the reason is one line.
env: $(COMPILED) ## Create .venv, install the locked packages, compile the engine, build Horovod once
	@$(BIN)/python .ci/build_horovod.py
	@echo "==> 1/3 environment: ready in $(VENV) after $(AFTER)"

# Not after `env`, which would build the other wheel first.
horovod-nccl: $(COMPILED) ## Build Horovod for GPUs, too, by NCCL, once: three minutes, no GPU needed
	@$(BIN)/python .ci/build_horovod.py --nccl

# What is compiled here would else be compiled at the first call, where a line says so.
$(COMPILED): | $(INSTALLED)
	@echo "==> 1/3 environment: compiling the engine and the simulator, half a minute"
	@$(BIN)/python -c 'from collectives.engine import group, kernels; kernels.compile_common()'
	@$(BIN)/collectives simulate all_reduce ring -p 24 --machine summit > /dev/null
	@touch $@

$(BIN)/python:
	@echo "==> 1/3 environment: creating $(VENV)"
	@if [ -z "$(PYTHON)" ]; then \
	    echo "error: no Python found; install Python 3.11, or name one: make env PYTHON=PATH" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: $(PYTHON) is no Python 3.11 or newer; name another: make env PYTHON=PATH" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' || { \
	    echo "error: $(PYTHON) has no venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV)

$(INSTALLED): requirements.lock requirements-cuda.lock pyproject.toml | $(BIN)/python
	@$(BIN)/python .ci/environment.py
	@touch $@

experiments: env ## Run the notebooks in experiments/ (PRESET=quick)
	@echo "==> 2/3 experiments: preset $(PRESET)"
	@$(BIN)/collectives run experiments/*.ipynb --preset $(PRESET) --replace

# The pages show the results of the quick preset, whatever PRESET says.
book: $(INSTALLED) ## Build the site into _build/html; the first pages can be read after a minute
	@if [ -f $(SITE)/index.html ] && [ -f $(BUILT_FROM) ] && [ "$$($(CHECKSUM))" = "$$(cat $(BUILT_FROM))" ]; then \
	    echo "==> 3/3 book: up to date"; \
	else \
	    $(BIN)/python .ci/kernels.py $(BIN)/python .ci/book.py; \
	fi
	@echo "The book lies in $(SITE)/index.html"
	@$(BIN)/python -c 'import pathlib; print(pathlib.Path("$(SITE)/index.html").resolve().as_uri())'

pdf: book ## Print the whole book into _build/book.pdf, and link it on the site
	@$(BIN)/python .ci/pdf.py

checksum:
	@$(CHECKSUM)

serve: book ## Serve the site on this machine (PORT=8000)
	@echo "==> http://localhost:$(PORT)/ (Ctrl-C stops it)"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(SITE) $(PORT)

check: env ## Check format, lint, types, imports, the text and the golden file
	@echo "==> ruff format"
	@$(BIN)/ruff format --check .
	@echo "==> ruff check"
	@$(BIN)/ruff check .
	@echo "==> mypy"
	@$(BIN)/mypy
	@echo "==> import-linter"
	@$(BIN)/lint-imports --no-cache --no-logo
	@echo "==> codespell"
	@$(BIN)/codespell assignments chapters examples experiments/presets src tests .ci *.md
	@echo "==> density"
	@$(BIN)/python .ci/density.py
	@echo "==> gates"
	@$(BIN)/python .ci/gates.py
	@echo "==> golden"
	@$(BIN)/python .ci/golden.py --check

format: env ## Format the code and repair what lint can repair
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# Three tiers, each of them part of the next. A file's tests run in one worker, which starts their ranks once.
unit: env ## Run the tests that start no process: a minute
	@echo "==> unit tests"
	@$(BIN)/python -m pytest $(WORKERS) -m "not integration and not extended"

test: env ## Run the tests that need no site: eleven minutes
	@echo "==> tests"
	@$(BIN)/python -m pytest $(WORKERS) -m "not extended"

test-all: book ## Build the site, then run every test
	@echo "==> all tests$(if $(ONLY), that are $(ONLY))"
	@$(BIN)/python -m pytest $(WORKERS) $(if $(ONLY),-m "$(ONLY)")

record: env ## Measure every committed row again, nothing else running: over two hours
	@PYTHONPATH=tests $(BIN)/python .ci/record.py

golden: env ## Record what the library computes: tests/golden.json
	@$(BIN)/python .ci/golden.py

golden-check: env ## Print what differs from tests/golden.json
	@$(BIN)/python .ci/golden.py --check

gpu-check: env ## Check NCCL on this machine's GPUs: eight minutes, one file
	@PYTHONPATH=tests $(BIN)/python -m ranks.gpu_check

lock: env ## Resolve pyproject.toml again, keeping versions that fit: requirements.lock
	@$(BIN)/python .ci/lock.py

clean: ## Remove the site, the results made here and the caches, not .venv
	rm -rf _build $(SCHEDULES) .hypothesis .mypy_cache .pytest_cache .ruff_cache
	if [ -d experiments/results ]; then \
	    find experiments/results -mindepth 1 -maxdepth 1 ! -name reference -exec rm -rf {} +; fi
	find src tests experiments -type d -name __pycache__ -prune -exec rm -rf {} +
