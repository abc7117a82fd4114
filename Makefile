# `make help` lists what there is. `make demo` and `make test` set up all they need.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON_SCRIPTS := scripts/test scripts/check-docs scripts/mutants scripts/config-docs scripts/check-dist scripts/make-blocking scripts/release

SEEDS ?= 200
MINUTES ?= 30
ARGS ?=

.PHONY: proto blocking help demo test check format sim sim-fresh interop pipelines soak soak-disk bench bench-disk bench-heal bench-tailing bench-spark bench-spark-latency bench-ui bench-new-user java chromium config-docs docs dist dist-check release lock clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' Makefile | awk -F':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

$(VENV): $(STAMP) ## the virtual environment, from the lock file
$(STAMP): pyproject.toml simulator/pyproject.toml requirements/dev.lock scripts/setup-venv
	@scripts/setup-venv
	@touch $(STAMP)

java:
	@scripts/ensure-java

chromium:
	@scripts/ensure-chromium

demo: $(STAMP) java ## real data through Spark into ledgers, with a bookie killed (under 3 minutes)
	@$(BIN)/python examples/*.py

test: $(STAMP) java chromium ## every test but the long lists (ARGS="unit" for one part, ARGS=--list)
	@$(BIN)/python scripts/test $(ARGS)

check: $(STAMP) ## format, lint, types, rooms and maps, mutants that fit the code, documents, generated code
	@$(BIN)/ruff format --check . $(PYTHON_SCRIPTS)
	@$(BIN)/ruff check --quiet . $(PYTHON_SCRIPTS)
	@$(BIN)/mypy
	@MYPYPATH=bench $(BIN)/mypy bench/compare.py bench/disk.py bench/heal.py bench/page_plot.py bench/tailing.py bench/ui.py examples/*.py
	@MYPYPATH=bench:bench/spark $(BIN)/mypy bench/spark/throughput.py bench/spark/follow.py bench/spark/audit.py bench/spark/offload.py
	@$(BIN)/python -m pytest -q --no-header tests/unit/project/test_imports.py tests/unit/project/test_folders.py tests/unit/project/test_maps.py
	@$(BIN)/python -m pytest -q --no-header tests/sim/test_mutants.py --deselect tests/sim/test_mutants.py::test_the_mutant_is_found
	@$(BIN)/python scripts/check-docs
	@$(BIN)/python scripts/make-blocking --check

format: $(STAMP) ## rewrite the sources in the project's format
	@$(BIN)/ruff format . $(PYTHON_SCRIPTS)
	@$(BIN)/ruff check --quiet --fix . $(PYTHON_SCRIPTS)

sim: $(STAMP) ## the simulator over SEEDS seeds, and over SEEDS fresh ones (make sim SEEDS=1000)
	@QUIRE_SIM_SEEDS=$(SEEDS) $(BIN)/python scripts/test sim sim-fresh sim-each

sim-fresh: $(STAMP) ## SEEDS seeds that nobody has tried yet, and a tenth of that in each workload
	@QUIRE_SIM_SEEDS=$(SEEDS) $(BIN)/python scripts/test sim-fresh sim-each

interop: $(STAMP) java ## all tests against Apache BookKeeper itself (needs Maven)
	@$(BIN)/python scripts/test interop-full

soak: $(STAMP) java ## simulator with fresh seeds, crashes and processes, for MINUTES minutes
	@scripts/soak $(MINUTES)

soak-disk: $(STAMP) ## bookies on small disks, filled, compacted and killed, for MINUTES minutes
	@$(BIN)/python -m tests.support.processes.disk_soak $(MINUTES)

pipelines: $(STAMP) java ## the long tests of jobs on Spark
	@QUIRE_FRESH_COMMANDS=1 $(BIN)/python scripts/test pipelines-long

bench: $(STAMP) java ## Quire and Apache BookKeeper side by side (ARGS="--quick", ARGS="--rows add-1k")
	@$(BIN)/python bench/compare.py $(ARGS)

bench-disk: $(STAMP) ## a bookie's index, start, cold reads, and adds beside them (ARGS="--quick", ARGS="--rows index")
	@$(BIN)/python bench/disk.py $(ARGS)

bench-heal: $(STAMP) ## what a lost bookie costs a writer, and what its healing copies (ARGS="--rounds 3")
	@$(BIN)/python bench/heal.py $(ARGS)

bench-tailing: $(STAMP) ## where readers that follow a ledger bend, over their number and the rate (ARGS="--apart --readers 1,10,100")
	@$(BIN)/python bench/tailing.py $(ARGS)

bench-spark: $(STAMP) java ## Spark reading and writing, beside what bounds it (ARGS="--rows write", ARGS=--quick)
	@PYTHONPATH=bench $(BIN)/python bench/spark/throughput.py $(ARGS)

bench-spark-latency: $(STAMP) java ## from an append to a query's sink, per trigger interval
	@PYTHONPATH=bench $(BIN)/python bench/spark/follow.py $(ARGS)

bench-ui: $(STAMP) ## each page of the dashboard, with 100 bookies and 100,000 ledgers (ARGS="--rounds 20")
	@$(BIN)/python bench/ui.py $(ARGS)

bench-new-user: $(STAMP) ## from a clone to an open dashboard, by the README alone; it installs from the package index
	@$(BIN)/python -m tests.support.docs.new_user

proto: ## remake the protobuf messages of v3 and of the metadata from their .proto files
	@scripts/make-proto

blocking: $(STAMP) ## write src/quire/blocking from the asyncio API
	@$(BIN)/python scripts/make-blocking

config-docs: $(STAMP) ## write the generated parts of the documents about configuration
	@$(BIN)/python scripts/config-docs

docs: $(STAMP) ## the documentation as a site, in build/site; broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1 | sed '/^INFO /d'  # --quiet would hide warnings from --strict
	@echo "build/site/index.html"

dist: $(STAMP) ## wheel and sdist, in dist/
	@$(BIN)/python scripts/check-dist --build-only

dist-check: $(STAMP) ## the same, installed into an empty environment, with a cluster run from there
	@$(BIN)/python scripts/check-dist

release: $(STAMP) ## check that this commit can be released, build it, and say what to publish
	@$(BIN)/python scripts/release

lock: ## remake the locks in requirements/ (ARGS=--upgrade for the newest versions)
	@scripts/lock $(ARGS)

clean: ## remove what was built; the virtual environment too
	@rm -rf $(VENV) build dist bench/out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find src simulator tests bench scripts examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
