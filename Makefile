# Two commands set everything up on a fresh machine: `make demo` and `make test`. Each makes the venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast contract test-kernel kernel-tools lint format bench crds lock services clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(STAMP) ## Run the whole loop in an embedded cluster: two simulated days in about three minutes
	$(BIN)/vpa-ippr demo

test: $(STAMP) services ## Run all tests but those on real kernels; real services are installed where apt is to be had
	$(PYTEST) --cov --cov-report=term --cov-report=xml --ignore=tests/kernel

test-fast: $(STAMP) ## Run the quick tests, which start no service, in under a minute
	HYPOTHESIS_EXAMPLES=10 $(PYTEST) -q -n auto -m "not integration and not slow" $(addprefix --ignore=tests/,backtest contract families forecast sandbox)

contract: $(STAMP) ## Run the contract suite on a sandbox of each version, or on the cluster that KUBECONFIG names
	CONTRACT_KUBECONFIG="$(KUBECONFIG)" $(PYTEST) -q tests/contract

KERNEL_SET ?= short
KERNEL_FAMILIES ?= 6.1 6.12 new
test-kernel: $(STAMP) kernel-tools ## Run the actuator on real kernels in QEMU; KERNEL_SET=long repeats, KERNEL_FAMILIES chooses
	KERNEL_SET="$(KERNEL_SET)" KERNEL_FAMILIES="$(KERNEL_FAMILIES)" $(PYTEST) -q tests/kernel

lint: $(STAMP) ## Check style, types, imports between rooms and dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry .

format: $(STAMP) ## Rewrite the code in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## Measure the hot paths
	$(BIN)/python -m bench

crds: $(STAMP) ## Write config/crd from the code
	$(BIN)/python -m vpa_ippr.api.crd config/crd

lock: ## Pin every dependency at its newest allowed version
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(VENV)/lock/bin/pip freeze --exclude-editable > requirements.lock
	rm -rf $(VENV)/lock

services: ## Install the real services that tests use (Prometheus), where apt is to be had
	@scripts/install-services

kernel-tools: ## Install QEMU and what guests are built with, where apt is to be had
	@scripts/kernel-tools

clean: ## Remove everything that was made
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis demo-output
