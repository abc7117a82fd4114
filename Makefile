# `make help` lists the targets. `make demo` and `make test` set up everything that they need.
SHELL := /usr/bin/env bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON_SCRIPTS := scripts/test scripts/check-docs scripts/mutants scripts/mutants-sample scripts/config-docs scripts/grafana-dashboards scripts/check-dist scripts/make-blocking scripts/make-man scripts/render-chart scripts/release

SEEDS ?= 200
N ?= 100
MINUTES ?= 30
ARGS ?=

.PHONY: proto blocking help demo test test-long check format sim sim-fresh explore mutants-sample interop pipelines soak soak-disk torture bench bench-disk bench-heal bench-peers bench-processes bench-scale bench-segments bench-size bench-tailing bench-spark bench-spark-latency bench-ui bench-new-user java chromium man config-docs docs dist dist-check release lock clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' Makefile | awk -F':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

$(VENV): $(STAMP) ## make the virtual environment from the lock file
$(STAMP): pyproject.toml simulator/pyproject.toml requirements/dev.lock scripts/setup-venv
	@scripts/setup-venv
	@touch $(STAMP)

java:
	@scripts/ensure-java

chromium:
	@scripts/ensure-chromium

demo: $(STAMP) java ## send real data through Spark into ledgers while a bookie is killed (under 3 minutes)
	@$(BIN)/python examples/demo.py

test: $(STAMP) java chromium ## run the tests, except the longest ones (ARGS="unit" runs one part, ARGS=--list lists them)
	@$(BIN)/python scripts/test $(ARGS)

test-long: $(STAMP) java chromium ## run the long tests, which `make test` leaves out
	@$(BIN)/python scripts/test --long

check: $(STAMP) ## check format, lint, types, folders, mutants, documents and generated code
	@$(BIN)/ruff format --check . $(PYTHON_SCRIPTS)
	@$(BIN)/ruff check --quiet . $(PYTHON_SCRIPTS)
	@$(BIN)/mypy
	@MYPYPATH=bench $(BIN)/mypy bench/compare.py bench/disk.py bench/heal.py bench/page_plot.py bench/peers.py bench/processes.py bench/scale.py bench/segments.py bench/size.py bench/tailing.py bench/ui.py examples/*.py
	@MYPYPATH=bench:bench/spark $(BIN)/mypy bench/spark/throughput.py bench/spark/follow.py bench/spark/audit.py bench/spark/offload.py
	@$(BIN)/python -m pytest -q --no-header tests/unit/project/source/test_imports.py tests/unit/project/source/test_folders.py tests/unit/project/source/test_maps.py
	@$(BIN)/python -m pytest -q --no-header tests/sim/tool/test_mutants.py --deselect tests/sim/tool/test_mutants.py::test_the_mutant_is_found
	@$(BIN)/python scripts/check-docs
	@$(BIN)/python scripts/make-blocking --check
	@$(BIN)/python scripts/make-man --check

format: $(STAMP) ## rewrite the sources in the project's format
	@$(BIN)/ruff format . $(PYTHON_SCRIPTS)
	@$(BIN)/ruff check --quiet --fix . $(PYTHON_SCRIPTS)

sim: $(STAMP) ## run the simulator's tests, and SEEDS fresh seeds (make sim SEEDS=1000)
	@QUIRE_SIM_SEEDS=$(SEEDS) $(BIN)/python scripts/test sim sim-streams sim-long sim-fresh sim-each

sim-fresh: $(STAMP) ## simulate SEEDS fresh seeds, and a tenth as many in each workload
	@QUIRE_SIM_SEEDS=$(SEEDS) $(BIN)/python scripts/test sim-fresh sim-each

explore: $(STAMP) ## visit every state of the replication protocol within small bounds (ARGS="--set quick")
	@$(BIN)/python -m quire_simulator.exploration $(if $(ARGS),$(ARGS),--set full)

mutants-sample: $(STAMP) ## change the code in N random places, and see what notices (ARGS="--seed 7", ARGS=--simulator-only)
	@$(BIN)/python scripts/mutants-sample --count $(N) $(ARGS)

interop: $(STAMP) java ## run all tests against Apache BookKeeper, 4.18.0 and then 4.17.2 (needs Maven)
	@$(BIN)/python scripts/test interop-full interop-4.17

soak: $(STAMP) java ## run fresh seeds, crash tests and process tests for MINUTES minutes
	@scripts/soak $(MINUTES)

soak-disk: $(STAMP) ## fill, compact and kill bookies on small disks for MINUTES minutes
	@$(BIN)/python -m tests.support.processes.disk_soak $(MINUTES)

pipelines: $(STAMP) java ## run the long tests of Spark jobs
	@$(BIN)/python scripts/test pipelines-long

torture: $(STAMP) java ## load a cluster of real processes with faults of every kind for MINUTES minutes, and judge it (ARGS="--seed N")
	@$(BIN)/python -m tests.support.torture $(MINUTES) $(ARGS)

bench: $(STAMP) java ## compare Quire and Apache BookKeeper (ARGS="--quick", ARGS="--rows add-1k")
	@$(BIN)/python bench/compare.py $(ARGS)

bench-disk: $(STAMP) ## measure a bookie's index, start, cold reads, and adds beside them (ARGS="--quick", ARGS="--rows index")
	@$(BIN)/python bench/disk.py $(ARGS)

bench-heal: $(STAMP) ## measure what a lost bookie costs a writer, and what its repair copies (ARGS="--rounds 3")
	@$(BIN)/python bench/heal.py $(ARGS)

bench-peers: $(STAMP) java ## compare streams with Kafka and NATS JetStream (ARGS="--quick", ARGS="--works stream loss"; needs Maven and Go)
	@$(BIN)/python bench/peers.py $(ARGS)

bench-processes: $(STAMP) ## compare one bookie with several of the same machine (ARGS="--processes 4 --clients 2")
	@$(BIN)/python bench/processes.py $(ARGS)

bench-segments: $(STAMP) java ## measure a stream of 10,000 small segments, as a query leaves them (ARGS="--zookeeper --batches 2000")
	@$(BIN)/python bench/segments.py $(ARGS)

bench-scale: $(STAMP) ## measure on the simulator's clock what a cluster costs by the number of its bookies (ARGS="--bookies 100")
	@$(BIN)/python bench/scale.py $(ARGS)

bench-size: $(STAMP) java ## measure what a cluster costs by the number of its ledgers, streams and entries (ARGS="--parts ledgers --ledgers 10000000")
	@$(BIN)/python bench/size.py $(ARGS)

bench-tailing: $(STAMP) ## measure tailing by number of readers and append rate (ARGS="--apart --readers 1,10,100")
	@$(BIN)/python bench/tailing.py $(ARGS)

bench-spark: $(STAMP) java ## measure reads and writes of Spark, beside their limits (ARGS="--rows write", ARGS=--quick)
	@PYTHONPATH=bench $(BIN)/python bench/spark/throughput.py $(ARGS)

bench-spark-latency: $(STAMP) java ## measure the time from an append to a query's sink, per trigger interval
	@PYTHONPATH=bench $(BIN)/python bench/spark/follow.py $(ARGS)

bench-ui: $(STAMP) ## measure each page of the dashboard with 100 bookies and 100,000 ledgers (ARGS="--rounds 20")
	@$(BIN)/python bench/ui.py $(ARGS)

bench-new-user: $(STAMP) ## measure the way from a clone to an open dashboard by the README; installs from the package index
	@$(BIN)/python -m tests.support.docs.new_user

proto: ## generate the protobuf messages of v3 and of the metadata from their .proto files
	@scripts/make-proto

blocking: $(STAMP) ## generate src/quire/blocking from the asyncio API
	@$(BIN)/python scripts/make-blocking

man: $(STAMP) ## write the man page and the completion files from the commands
	@$(BIN)/python scripts/make-man

config-docs: $(STAMP) ## generate the tables in the documents about configuration
	@$(BIN)/python scripts/config-docs

docs: $(STAMP) ## build the documentation site in build/site; broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1 | sed '/^INFO /d'  # --quiet would hide warnings from --strict
	@echo "build/site/index.html"

dist: $(STAMP) ## build wheel and sdist in dist/
	@$(BIN)/python scripts/check-dist --build-only

dist-check: $(STAMP) ## build them, install the wheel into an empty environment, and run a cluster from there
	@$(BIN)/python scripts/check-dist

release: $(STAMP) ## check that this commit can be released, build it, and say what to publish
	@$(BIN)/python scripts/release

lock: ## refresh the locks in requirements/ (ARGS=--upgrade for the newest versions)
	@scripts/lock $(ARGS)

clean: ## remove everything that was built, and the virtual environment
	@rm -rf $(VENV) build dist bench/out .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find src simulator tests bench scripts examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
