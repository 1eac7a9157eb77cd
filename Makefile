# Every target sets up .venv by itself, with nothing but python3 and pip.

PYTHON ?= python3
# One more than the least machine has cores: many tests wait for a process, a connection or a disk.
TEST_WORKERS ?= 3
JOBS ?= 2

# Empty is off, whatever the caller has set: tests start hundreds of processes, and each would compile
# the package anew.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow fuzz chaos lint bench wheel docs screenshots clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  Another interpreter: make PYTHON=python3.12 ...   More test workers: make test TEST_WORKERS=8"

demo: $(READY) ## Train on real handwritten digits: a server and 4 uneven device processes, over TLS
	$(BIN)/fedoptima run recipes/demo_network.toml --paced

# The least share of lines and branches that the tests must run: of the core, of the whole package.
CORE_COVERAGE := 98
COVERAGE := 90

test: lint ## Check style and types, run every test, check how much of the code they run
	@rm -f .coverage .coverage.* .coverage-cluster*
	$(BIN)/python -m compileall -q -j $(JOBS) src
	@# Beside the others, for a cluster mostly waits; its output comes at the end.
	COVERAGE_FILE=.coverage-cluster $(BIN)/python -m pytest -m "cluster and not slow" --cov --cov-report= \
	  tests/comparison > $(VENV)/cluster.log 2>&1 & cluster=$$!; trap 'kill $$cluster' INT TERM; \
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  -m "not cluster and not slow" --cov --cov-report=; tests=$$?; \
	wait $$cluster; cluster=$$?; cat $(VENV)/cluster.log; test $$tests = 0 -a $$cluster = 0
	$(BIN)/coverage combine --quiet --append .coverage-cluster
	$(BIN)/fedoptima fuzz --seeds 2000 --jobs $(JOBS) --quiet
	$(BIN)/coverage report --include='*/fedoptima/core/*' --fail-under=$(CORE_COVERAGE) --skip-covered
	$(BIN)/coverage report --fail-under=$(COVERAGE) --skip-covered --sort=miss

slow: $(READY) ## Run the tests that take minutes, and the laws over many more random runs
	$(BIN)/python -m pytest -n $(TEST_WORKERS) -m slow -o faulthandler_timeout=3600
	$(BIN)/python -m pytest -n $(TEST_WORKERS) -o faulthandler_timeout=3600 tests/sim tests/core tests/analysis tests/runtime \
	  tests/data tests/preprocess tests/engine tests/trace --hypothesis-profile thorough

fuzz: $(READY) ## Play 50,000 scripts of simulated faults with all methods, and check the laws
	$(BIN)/fedoptima fuzz --seeds 50000 --jobs $(JOBS)

chaos: $(READY) ## Kill, stop, cut off and starve real processes, three seeds of the seven methods; record it
	$(BIN)/python -m tools.chaos --seeds 3 --record docs/reliability.md

lint: $(READY) ## Check style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## Measure simulator and network against bare loops, and the cost of scale
	$(BIN)/python -m benchmarks.run

wheel: $(READY) ## Build dist/fedoptima-VERSION-py3-none-any.whl, to be copied to server and devices
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	  $(BIN)/python -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir dist .
	@ls dist/fedoptima-*.whl

docs: $(READY) ## Build the documentation site in build/site, offline and strict
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html, or serve it with search: $(BIN)/python -m http.server --directory build/site"

screenshots: $(READY) ## Make the pictures of report and live page in docs/images (needs chromium)
	$(BIN)/python -m tools.screenshots

clean: ## Remove .venv, caches and builds (results in runs/ stay)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +

# The stamp is written last: an interrupted installation is taken up again by the next make. The
# constraints go through the environment because only so do they also bind what builds the package.
$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "error: '$(PYTHON)' is not on the PATH. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $$($(PYTHON) --version) is too old, 3.11 or newer is needed. Name another one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	  $(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	@touch $@
