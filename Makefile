# `make demo` and `make test` need nothing but a Python 3.11 or newer: each sets up what it uses.
#
#   PYTHON=python3.12   the Python that VENV is made with
#   TORCH=some.whl      the torch to install, where VENV has none yet

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# The newest megatron-core the tests run on, beside the one in constraints.txt. A folder of its own,
# put in front of VENV's packages: from 0.17 on its metadata asks for Python 3.12, its code does not.
NEXT_MCORE := 0.19.2
NEXT := $(VENV)-mcore019
# What must hold on every megatron-core: the oracle, that a job loads what we write, and parity.
MCORE_TESTS := $(wildcard tests/oracle tests/load tests/parity/test_healthy.py \
	tests/parity/test_mtp_families.py tests/parity/test_saved_with_mtp.py)

PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test lint format setup clean

help:
	@echo "make demo     convert the demo checkpoint there and back, and show the proof"
	@echo "make test     lint, types and all tests, on megatron-core 0.16 and 0.19"
	@echo "make lint     ruff and mypy only"
	@echo "make format   put the code in ruff's format"
	@echo "make setup    the environment of make test, without running anything"
	@echo "make clean    remove the environments and caches"

demo: $(VENV)/.base
	@$(BIN)/mtpconv demo

test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(PYTEST)
	PYTHONPATH=$(NEXT) $(PYTEST) $(MCORE_TESTS)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

setup: $(VENV)/.all $(NEXT)/.$(NEXT_MCORE)

SETUP := scripts/setup_env.sh
$(VENV)/.base: pyproject.toml constraints.txt $(SETUP)
	@$(SETUP) "$(PYTHON)" "$(VENV)"
	@touch $@

$(VENV)/.all: pyproject.toml constraints.txt $(SETUP)
	@$(SETUP) "$(PYTHON)" "$(VENV)" parity,chat,hub,dev
	@touch $(VENV)/.base $@

$(NEXT)/.$(NEXT_MCORE): | $(VENV)/.all
	@echo "setup: megatron-core $(NEXT_MCORE) in $(NEXT)" >&2
	@rm -rf $(NEXT)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-input --no-deps \
		--ignore-requires-python --target $(NEXT) megatron-core==$(NEXT_MCORE)
	@touch $@

clean:
	rm -rf $(VENV) $(NEXT) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
