# Every target makes .venv from the hash-locked file when it is missing or the lock has changed.
PYTHON ?= python3
BIN := .venv/bin
# A progress display at a terminal, plain lines elsewhere.
LOGGER := $(shell test -t 2 && echo --logger rich)
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help campaign_local test vllm_cpu_images test_vllm_cpu lint lock

help:
	@echo "make campaign_local   run the small campaign on this machine (no GPU needed)"
	@echo "make test             run all tests but those of vLLM on CPUs"
	@echo "make test_vllm_cpu    build vLLM for CPUs (7 GB) and run its tests"
	@echo "make lint             formatters, linters, types"
	@echo "make lock             resolve envs/harness.in into envs/harness.lock.txt"

.venv/.ready: envs/harness.lock.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r envs/harness.lock.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

campaign_local: .venv/.ready
	$(BIN)/snakemake --cores all campaign_local --quiet reason host $(LOGGER)
	$(BIN)/python -m assay show results/campaign_local

test: .venv/.ready
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not serial and not vllm_cpu"
	$(BIN)/python -m pytest -m "serial and not vllm_cpu"

vllm_cpu_images: .venv/.ready
	$(BIN)/snakemake --cores all --quiet reason host -- \
		$(foreach image,vllm_cpu vllm_router,results/campaign_vllm_cpu/receipts/images/$(image).json)

test_vllm_cpu: vllm_cpu_images
	$(BIN)/python -m pytest -m vllm_cpu

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/mypy
	$(BIN)/python tests/lint_workflow.py

lock: .venv/.ready
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header -o envs/harness.lock.txt envs/harness.in
