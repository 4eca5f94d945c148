# Everything sets itself up: `make demo`, `make test` and `make test-all` work from a clean clone.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --jobs=2

# Images of Python set it, and each process that tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
COMPILED := .venv/.compiled
# Two have a Spark and one a broker of its own, 3 GB together; on two cores further ones use what
# these wait.
TEST_PROCESSES ?= 5
# Some wait for servers and clocks, so that two on two cores leave a third of these idle.
FAST_PROCESSES ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? 4 : cores)))
PYTEST = $(BIN)/python -m pytest tests --ignore=tests/containers --numprocesses=$(TEST_PROCESSES) --dist=loadgroup
IN_TEST := -m 'not (cluster or figures or kill or test_all)' --hypothesis-profile=fast
LANES := producer reorder topology subscription shell
EVENTS ?= 8000000
KILL_ROUNDS ?= 20
# What `make mutants` breaks.
STATE_MACHINES = $(shell $(BIN)/python -c 'import tomllib; print(",".join(one.replace("sequitur", "*", 1) for one in tomllib.load(open("pyproject.toml", "rb"))["tool"]["mutmut"]["only_mutate"]))')

.PHONY: help setup peers jars demo test test-all $(LANES:%=test-%) test-fast test-extras test-kill test-cursor coverage mutants mutants-by-hand test-containers bench-producer bench-reorder bench-reorder-shape bench-runners bench-exactly-once bench-peers bench-spark-sink bench-process bench-windows bench-keyed bench-delay bench-cursor bench-subscription bench-checks check count failures reference pictures format clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 30

setup: $(INSTALLED) jars ## Virtual environment, pinned dependencies, locked jars, archive of their classes

$(INSTALLED): pyproject.toml constraints.txt
	@PYTHON='$(PYTHON)' .ci/prepare
	@echo 'set-up: virtual environment .venv' >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@.ci/install $(BIN)/python pip wheel
	@$(BIN)/python -m pip -qq --disable-pip-version-check uninstall --yes sequitur # its name before sequitur-kafka
	@.ci/install $(BIN)/python --group dev -e '.[all]'
	@touch $@

jars: $(INSTALLED)
	@$(BIN)/sequitur setup

# Else each of the processes that run the tests compiles all of them, with what an assertion shows.
$(COMPILED): $(INSTALLED)
	@$(BIN)/python -m pytest tests --collect-only -qq > /dev/null || true # the run itself shows what is wrong
	@touch $@

peers: setup ## What the benchmarks measure us beside: Flink, Kafka's own tools, franz-go and others
	@PYTHON='$(PYTHON)' .ci/prepare peers
	@$(BIN)/python -m benchmarks.peers

demo: setup ## The main job on this machine's CPU readings: a table, and demo.png
	@$(BIN)/sequitur demo --plot demo.png --report build/demo.json

test: setup $(COMPILED) ## The tests of every promise: on a real broker and real Spark, once each
	@$(PYTEST) $(IN_TEST)

$(LANES:%=test-%): test-%: setup $(COMPILED)
	@$(PYTEST) $(IN_TEST) --lane=$*

test-all: setup $(COMPILED) ## All tests, kills and clusters too, the wheel with each extra, and containers where Docker's engine runs
	@$(PYTEST) --promises
	@$(BIN)/python -m tests.house.extras
	@tests/containers/run

test-fast: $(INSTALLED) ## Tests that need neither broker nor Spark, on all cores; fewer examples
	@$(BIN)/python -m pytest tests/unit tests/property -m 'not slow' --hypothesis-profile=fast \
	  --numprocesses=$(FAST_PROCESSES) --dist=worksteal

test-extras: setup ## The wheel in clean environments: the base, and what each extra is for
	@$(BIN)/python -m tests.house.extras

test-kill: setup ## The tests that kill, with KILL_ROUNDS rounds each; of the local runner ten times as many
	@SEQUITUR_KILL_ROUNDS=$(KILL_ROUNDS) SEQUITUR_DRIVER_KILL_ROUNDS=$(KILL_ROUNDS) \
	  $(BIN)/python -m pytest tests -m kill --numprocesses=$(TEST_PROCESSES) --dist=loadgroup

test-cursor: $(INSTALLED) ## The cursor against a plain array, a hundred million operations
	@SEQUITUR_CURSOR_OPERATIONS=100000000 $(BIN)/python -m pytest tests/property/test_cursor_random_run.py \
	  --timeout=0 --numprocesses=$(TEST_PROCESSES)

coverage: $(INSTALLED) ## Branches that test-fast takes, in its own process; all, for the state machines
	@$(BIN)/python -m coverage run -m pytest tests/unit tests/property -m 'not slow' --hypothesis-profile=fast -q
	@$(BIN)/python -m coverage report --skip-covered
	@$(BIN)/python -m coverage report --include='$(STATE_MACHINES)' --show-missing

mutants: $(INSTALLED) ## Break the pure state machines line by line: which mistakes do the tests miss?
	@$(BIN)/python -m mutmut run
	@$(BIN)/python -m mutmut results

mutants-by-hand: $(INSTALLED) ## Break what starts threads and asks servers, by the patches of tests/mutants
	@tests/mutants/run

test-containers: setup ## Those of the integration tests that a container can tell apart
	@tests/containers/run --required

bench-producer: peers ## The producer beside its peers: a table, a plot and build/bench/producer.json
	@$(BIN)/python -m benchmarks.producer $(if $(SHORT),--runs 1 --without-limits)

bench-reorder: peers ## The reorder job beside its peers: as above; EVENTS=1000000 for a short run
	@$(BIN)/python -m benchmarks.reorder --events $(EVENTS)

bench-reorder-shape: setup ## What the reorder job's speed, memory and latency depend on
	@$(BIN)/python -m benchmarks.reorder_shape --events $(EVENTS)

bench-runners: setup ## The local runner beside Spark: start, idle, a stream, S3; an hour, or SHORT=1
	@$(BIN)/python -m benchmarks.runners $(if $(SHORT),--short) $(if $(ONLY),--only $(ONLY))

bench-exactly-once: peers ## A row's time as readers of committed records see it, beside peers; SHORT=1
	@$(BIN)/python -m benchmarks.exactly_once_latency $(if $(SHORT),--short) $(if $(ONLY),--only $(ONLY))

bench-peers: ## Beside all peers once, in short runs: 25 minutes
	@$(MAKE) --jobs=1 bench-producer bench-exactly-once SHORT=1

bench-spark-sink: setup ## A stream of one's own: ExactlyOnceKafka beside Spark's own sink
	@$(BIN)/python -m benchmarks.spark_sink

bench-process: setup ## A topology behind the reorder job, transactions, the acker: build/bench/process.json
	@$(BIN)/python -m benchmarks.process --events $(EVENTS)

bench-windows: peers ## Windows and a join on both runners, and Flink's: build/bench/windows.json
	@$(BIN)/python -m benchmarks.windows

bench-keyed: setup ## State of keys: cost, a step that touches one, many keys in little memory: build/bench/keyed.json
	@$(BIN)/python -m benchmarks.keyed

bench-delay: setup ## A learned delay beside every fixed one: a table, a plot, build/bench/delay.json
	@$(BIN)/python -m benchmarks.delay

bench-cursor: setup ## A subscription's cursor beside pyroaring and a set: build/bench/cursor.json
	@$(BIN)/python -m benchmarks.cursor

bench-subscription: setup ## A Subscription beside the consumer it reads with: build/bench/subscription.json
	@$(BIN)/python -m benchmarks.subscription

bench-checks: setup ## A round of checks of many subscriptions: a table and build/bench/checks.json
	@$(BIN)/python -m benchmarks.checks

check: $(INSTALLED) ## Lint, formatting, types, contracts between packages, promises, generated pages, prose
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python -m tests.house.face
	@$(BIN)/python -m tests.house.promises
	@$(BIN)/python -m tests.house.reference
	@$(BIN)/python -m tests.house.prose

pictures: $(INSTALLED) ## Draw docs/pictures
	@$(BIN)/python -m tests.house.pictures

failures: $(INSTALLED) ## Write build/failures.md: each failure case, what is promised, and the tests that show it
	@$(BIN)/python -m tests.house.promises --write

reference: $(INSTALLED) ## Write docs/settings.md, metrics.md and reference/, of settings, metrics and docstrings
	@$(BIN)/python -m tests.house.reference --write

count: $(INSTALLED) ## Lines of each product, and the files that one row passes
	@$(BIN)/python -m tests.house.count

format: $(INSTALLED) ## Format the code and mend what can be mended by itself
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove all that was made here; the jars' cache outside the tree stays
	@rm -rf .venv build dist mutants .coverage *.egg-info demo.png .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
