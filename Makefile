# Everything a developer does here. Each target makes its own virtual
# environment when there is none, and installs what it needs into it.
#
#   PYTHON=python3.12 make test     another interpreter than python3
#   VENV=/somewhere make test       another place for the environment

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-oldest lint format bench soak docs clean

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-cli  ## what it is for, in three acts and under 20 seconds; no server needed
	@$(BIN)/python -m slotwise demo $(ARGS)

# Five at a time on two cores: half of the suite waits for servers, processes and heartbeats. More
# would only collect the tests more often. Compiled tests are kept, whatever the environment says.
WORKERS = $(shell $(BIN)/python -c 'import os; print(min(5 * (os.cpu_count() or 1) // 2, 8))')

# The files of tests are many and small. In memory they cost a tenth of what they cost on a disk.
IN_MEMORY = $(shell $(BIN)/python -c 'import os; memory = os.statvfs("/dev/shm"); \
	fits = memory.f_bavail * memory.f_frsize > 2**31 and not memory.f_flag & os.ST_NOEXEC; \
	print("TMPDIR=/dev/shm" if fits and os.access("/dev/shm", os.W_OK) else "")' 2>/dev/null)

# In a fresh clone each worker would compile all tests, which takes as long as collecting them. So two
# processes do that first, half of them each; what fails is told by the tests themselves.
tests/__pycache__: | $(VENV)/.installed-test
	@for half in 0 1; do PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -qq \
		$$(find tests -name 'test_*.py' | awk "NR % 2 == $$half") >/dev/null 2>&1 & done; wait

test: $(VENV)/.installed-test | tests/__pycache__  ## all tests (ARGS="-k word" for some of them)
	PYTHONDONTWRITEBYTECODE= $(IN_MEMORY) $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

test-all:  ## all tests on every Python >= 3.11 that can be found
	@found=; for version in 3.11 3.12 3.13 3.14; do \
		python=python$$version; \
		$$python -c 'import sys' >/dev/null 2>&1 || continue; \
		found=1; echo "== Python $$version"; \
		$(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || exit 1; \
	done; \
	[ -n "$$found" ] || { echo "no python3.11 or later found"; exit 1; }

# The versions are the lower bounds in pyproject.toml.
test-oldest:  ## the tests of Redis with the oldest redis-py that is supported
	@$(MAKE) --no-print-directory VENV=.venv-oldest .venv-oldest/.installed-test
	@.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check \
		redis==5.1.0 hiredis==3.2.0
	.venv-oldest/bin/python -m pytest $(or $(ARGS),tests/redis)

lint: $(VENV)/.installed-lint  ## format, rules, types, and the direction of imports
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-lint  ## put the code into shape
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(VENV)/.installed-bench  ## the figures of the README, against rivals in the same run
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/.installed-test  ## what depends on time and chance: faults (SLOTWISE_SOAK_SECONDS=60 each), storms, speed
	$(BIN)/python -m pytest -m soak --timeout 1800 $(ARGS)
	SLOTWISE_ALL_SCHEDULES=1 $(BIN)/python -m pytest --timeout 1800 -m "soak or not soak" \
		tests/memory/test_quick_lane_interleavings.py tests/tiers/test_quick_lane_interleavings.py
	SLOTWISE_REAL_INTERPRETERS=1 $(BIN)/python -m pytest $$(grep -lE '_fresh_processes|_shell' -r tests --include=test_*.py)
	SLOTWISE_EXAMPLES=30 $(BIN)/python -m pytest --timeout 1800 $$(grep -lE 'import (TIMES|examples)' -r tests --include=test_*.py)

docs: $(VENV)/.installed-docs  ## the documentation, into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

clean:  ## remove what the other targets made
	rm -rf .venv .venv-* docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One environment for all; a stamp for each set of packages in it.
$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	@echo "installing what 'make' needs for $* ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "There is no '$(PYTHON)' here. Install Python 3.11 or later, or name one: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "slotwise needs Python 3.11 or later, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)."; \
		echo "Name another one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' has no venv module. On Debian: apt-get install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
