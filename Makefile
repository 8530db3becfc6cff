# Makefile: every target makes .venv from the hash-locked file when it is missing or the lock has changed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: campaign_local test lint lock clean

.venv/.ready: envs/harness.lock.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r envs/harness.lock.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
