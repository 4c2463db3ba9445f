# Each target sets itself up: the environment is made once, and again when pyproject.toml changes.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
START  := $(VENV)/start
READY  := $(VENV)/ready
SEEDS  ?= 300
JOBS   ?= 2
SECONDS ?= 120
MINUTES ?= 10
SEED   ?=
QUICK  ?=
ARGS   ?=
IMAGE  ?= quorate:dev
TARGET ?= broker
PACKAGES := cluster node quorate chaos
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check
INSTALL := $(PIP) install --constraint constraints.txt

.PHONY: help
help: ## Show what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/\1\t\2/' | expand -t 18

# What a cluster and the tutorials need: a newcomer waits for nothing else. What builds packages is
# installed first, and once: pip would fetch it anew for each package that it builds.
$(START): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is missing. On Debian: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11. Name a newer one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is missing. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "setting up $(VENV)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(INSTALL) hatchling setuptools wheel
	@$(INSTALL) --no-build-isolation -e '.[tutorials]'
	@touch $@

$(READY): $(START)
	@echo "adding what the tests need to $(VENV)"
	@$(INSTALL) -e '.[dev]'
	@touch $@

.PHONY: setup
setup: $(READY) ## Make the environment in .venv (the other targets do it by themselves)

.PHONY: up
up: $(START) ## Three nodes on loopback, with a live table; Ctrl-C stops them
	@$(BIN)/quorate up $(ARGS)

# As in CI, which runs what is marked `chaos` as campaigns, and `ops` and `spark` on their own.
.PHONY: test
test: $(READY) ## Run the tests; the last line says how many
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup \
		-m "not spark and not bench and not toolchain and not ops and not undrawn" $(ARGS)

# What needs no process, and of the nodes on loopback what is quick.
FAST := $(addprefix tests/,machine codec log raft cluster dispatch protocols checker \
	node/routing node/metrics/test_own_raft.py node/metrics/test_client_counters.py) \
	$(addprefix tests/node/test_,cold_reads.py message.py message_history.py native.py numbers_after_recovery.py \
	passwords.py patterns.py permissions.py publishing.py relay.py settings.py transactions.py transient.py watchdog.py)

.PHONY: test-fast
test-fast: $(READY) ## The machine, its codec, log, Raft, cluster, and what is quick of the nodes
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not bench" $(FAST) $(ARGS)

# Spark and its friends are large, so only what needs them has them. Java 17 must be there.
SPARK_READY := $(VENV)/.postmortem
$(SPARK_READY): $(READY)
	@echo "installing Spark into $(VENV)"
	@$(INSTALL) -e '.[postmortem]'
	@touch $@

.PHONY: test-postmortem
test-postmortem: $(SPARK_READY) ## Run the tests of the Spark post-mortem, in one session
	@$(BIN)/python -m pytest -m spark $(ARGS)

# Without Spark the modules that import it or its friends cannot be checked: `check-postmortem` does.
SPARKLESS = grep -rLE --include='*.py' '^ *(from|import) (pyspark|py4j|pandas|pyarrow)' $(PACKAGES)

.PHONY: coverage
coverage: $(READY) ## The core's lines that its own tests run; fails below the limit in pyproject.toml
	@$(BIN)/python -m coverage run -m pytest -q $(addprefix tests/,machine codec log raft cluster) $(ARGS)
	@$(BIN)/python -m coverage report

.PHONY: check
check: $(READY) ## Format, lint, types and import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright --pythonpath $(BIN)/python hatch_build.py $$($(SPARKLESS))
	@$(BIN)/lint-imports

.PHONY: check-postmortem
check-postmortem: $(SPARK_READY) ## All types, those of the Spark post-mortem too
	@$(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: package
package: $(READY) ## A wheel and an sdist, in dist: one top-level package, `quorate`
	@$(BIN)/python -m hatchling build

.PHONY: constraints
constraints: ## Write constraints.txt anew: the newest versions that pyproject.toml allows; test them then
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(PYTHON) -m venv "$$folder/venv"; \
	pip() { "$$folder/venv/bin/python" -m pip --disable-pip-version-check "$$@"; }; \
	pip install --quiet '.[dev,postmortem,ui,docs]'; \
	pip install --quiet '.[chaos]' || echo "NetfilterQueue cannot be built here: it is not in the list" >&2; \
	{ sed -n '/^#/p' constraints.txt; pip list --format freeze --exclude quorate --exclude pip --exclude setuptools; } >"$$folder/new"; \
	cp "$$folder/new" constraints.txt

.PHONY: format
format: $(READY) ## Format the code and apply the safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: simulate
simulate: $(READY) ## Clusters under virtual time with faults: SEEDS=300 and those kept, one seed: ARGS="--seed 7"
	@$(BIN)/python -m chaos.simulator --seeds $(SEEDS) $(ARGS)
	@$(if $(ARGS),true,$(BIN)/python -m pytest -q -n $(JOBS) tests/simulation/test_swarm.py)

.PHONY: simulate-stock
simulate-stock: $(READY) ## The same faults against PySyncObj as shipped: shows what they break
	@$(BIN)/python -m chaos.simulator --stock $(ARGS)

# Delayed and lossy links need NetfilterQueue, which needs a C library: without it a run says what it did not try.
CHAOS_READY := $(VENV)/.chaos
$(CHAOS_READY): $(READY)
	@$(INSTALL) -e '.[chaos]' 2>/dev/null \
		|| echo "links will not be delayed: first apt-get install libnetfilter-queue-dev gcc python3-dev" >&2
	@touch $@

.PHONY: chaos
chaos: $(CHAOS_READY) ## Real nodes under load and faults, judged: MINUTES=10, seeds from: SEED=7
	@$(BIN)/python -m chaos run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: chaos-power
chaos-power: $(CHAOS_READY) ## All nodes lose their power at once under load, 20 times
	@$(BIN)/python -m chaos power $(ARGS)

.PHONY: chaos-members
chaos-members: $(CHAOS_READY) ## Nodes join, leave and are replaced, groups move, under faults: ARGS="--only move,remove"
	@$(BIN)/python -m chaos members $(ARGS)

.PHONY: chaos-selftest
chaos-selftest: $(CHAOS_READY) ## Broken builds, each of which the suite must catch
	@$(BIN)/python -m chaos selftest $(ARGS)

.PHONY: postmortem-demo
postmortem-demo: $(SPARK_READY) ## A leader killed, a follower that stands still, and what their logs say of it: var/incident/report
	@$(BIN)/python -m chaos incident $(ARGS)

.PHONY: failover
failover: $(READY) ## Publish and consume while the leader is killed ten times
	@$(BIN)/quorate failover $(ARGS)

.PHONY: upgrade-rehearsal
upgrade-rehearsal: $(READY) ## Roll three nodes from 0.2 to this release and back, to the next one, and from the first, under load: ARGS="gated next first mixed"
	@$(BIN)/python -m tests.acceptance.upgrade $(ARGS)

.PHONY: bench
bench: $(READY) ## Measure three nodes on loopback, fsync on: ARGS="--quick" or ARGS="--only NAME"
	@$(BIN)/python -m tests.acceptance.bench $(ARGS)

.PHONY: bench-postmortem
bench-postmortem: $(SPARK_READY) ## Rows a second of reading, decoding, replay and report: ARGS="--millions 1"
	@$(BIN)/python -m tests.acceptance.bench.postmortem $(ARGS)

.PHONY: bench-message
bench-message: $(READY) ## Processor time of the history of one message among three million: ARGS="--compare"
	@$(BIN)/python -m tests.acceptance.bench.message_history $(ARGS)

# NATS is driven by its own Python client.
.PHONY: compare
compare: $(READY) ## Beside RabbitMQ and NATS, interleaved, against targets: QUICK=1 within 10 minutes, ARGS="--output docs"
	@$(BIN)/python -m tests.acceptance.bench.compare $(if $(QUICK),--quick) $(ARGS)

.PHONY: bench-nats
bench-nats: $(READY) ## The same of NATS's clients: streams and core messages beside nats-server in two settings
	@$(BIN)/python -m tests.acceptance.bench.compare --table performance-nats $(if $(QUICK),--quick) $(ARGS)

.PHONY: scaling
scaling: $(READY) ## How cost grows with messages, queues, groups, nodes ...: QUICK=1 in 5 minutes, ARGS="--output docs"
	@$(BIN)/python -m tests.acceptance.bench.scaling $(if $(QUICK),--quick) $(ARGS)

.PHONY: links
links: $(READY) ## Shovels and federation with RabbitMQ while both sides are killed, a backlog relieved and explained, RabbitMQ's tools: ARGS="--messages 10000 --only 'ours to ours'" or ARGS="--only backlog"
	@$(BIN)/python -m tests.acceptance.links $(ARGS)
	$(if $(ARGS),,@$(BIN)/python -m pytest -q -rs tests/acceptance/links/test_federation.py \
		tests/node/management/test_tools.py tests/acceptance/clients/test_management_tools.py \
		tests/node/management/test_backlogs.py -k "not perf_test")

UI_READY := $(VENV)/.ui
$(UI_READY): $(READY)
	@command -v chromium >/dev/null || { echo "chromium is missing. On Debian: apt-get install chromium" >&2; exit 1; }
	@$(INSTALL) -e '.[ui]'
	@touch $@

.PHONY: ui
ui: $(UI_READY) ## The web UI in a real browser; pictures of every page, light and dark, wide and narrow, in var/ui
	@mkdir -p var/ui
	@UI_PICTURES=var/ui $(BIN)/pytest -q -m ops tests/ui $(ARGS)

.PHONY: ui-many
ui-many: $(UI_READY) ## How long pages of the web UI take beside 10,000 queues: ARGS="--queues 50000"
	@$(BIN)/python -m tests.ui.many $(ARGS)

DOCS_READY := $(VENV)/.docs
$(DOCS_READY): $(READY)
	@$(INSTALL) -e '.[docs]'
	@touch $@

.PHONY: docs
docs: $(DOCS_READY) ## The documentation as a site, in var/site; strict: links and anchors are checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

.PHONY: newcomer
newcomer: $(UI_READY) ## A fresh clone, three nodes, messages in three languages, as the docs say: var/newcomer; ARGS="--output docs"
	@$(BIN)/python -m tests.acceptance.newcomer $(ARGS)

.PHONY: semantics
semantics: $(READY) ## What AMQP clients see, row by row, against RabbitMQ: BROKER=amqp://... checks another
	@$(BIN)/python -m tests.acceptance.semantics $(if $(BROKER),--broker '$(BROKER)',--reference) $(ARGS)

.PHONY: jetstream
jetstream: $(READY) ## What NATS clients see, row by row, against nats-server: BROKER=nats://... checks another
	@$(BIN)/python -m tests.acceptance.jetstream $(if $(BROKER),--broker '$(BROKER)',--reference) $(ARGS)

.PHONY: bench-amqp
bench-amqp: $(READY) ## The same through AMQP, by a C client and pika: ARGS="--quick" or ARGS="--only NAME"
	@$(BIN)/python -m tests.acceptance.bench.amqp $(ARGS)

.PHONY: bench-check
bench-check: $(READY) ## Hot paths, counted, against what is recorded: ARGS=--record, ARGS="--only varied"
	@$(BIN)/python -m tests.acceptance.bench.check $(ARGS)

.PHONY: walk
walk: $(READY) ## Calls, functions and files of one publish, delivery and settle: ARGS="--calls publish" or ARGS=--keep
	@$(BIN)/python -m tests.acceptance.bench.walk $(ARGS)

.PHONY: fuzz-amqp
fuzz-amqp: $(READY) ## Random and mutated AMQP against three nodes: SECONDS=120, again: ARGS="--seed 7"
	@$(BIN)/python -m tests.acceptance.fuzz --seconds $(SECONDS) $(ARGS)

.PHONY: fuzz-nats
fuzz-nats: $(READY) ## The same by NATS and JetStream: SECONDS=120, again: ARGS="--seed 7"
	@$(BIN)/python -m tests.acceptance.fuzz --protocol nats --seconds $(SECONDS) $(ARGS)

.PHONY: fuzz-raft
fuzz-raft: $(READY) ## Members of one group alone, driven at random: SECONDS=120, again: ARGS="--first 7"
	@$(BIN)/python -m tests.raft.fuzz --seconds $(SECONDS) $(ARGS)

.PHONY: mutants
mutants: $(READY) ## The source broken in many named ways, and what catches each: ARGS="--only votes"
	@$(BIN)/python -m tests.mutants --jobs $(JOBS) $(ARGS)

.PHONY: rewrite
rewrite: $(READY) ## Rewrite the expected outputs of the test scripts; read the diff afterwards
	@$(BIN)/python -m pytest -q --rewrite tests/machine $(ARGS)

.PHONY: clients
clients: $(READY) ## Real clients against three nodes, as a table: ARGS="--only pika,go"
	@$(BIN)/python -m tests.acceptance.clients $(ARGS)

.PHONY: clients-nats
clients-nats: $(READY) ## Real clients of NATS against three nodes, also while a leader is killed: ARGS="--only nats-py,nats.go"
	@$(BIN)/python -m tests.acceptance.clients --nats $(ARGS)

.PHONY: prometheus
prometheus: $(READY) ## A real Prometheus on nodes under load: boards, rules, names: ARGS="--reference FOLDER"
	@$(BIN)/python -m tests.acceptance.ops.prom $(ARGS)

.PHONY: chart
chart: $(READY) ## The Helm chart: every case rendered, validated and judged, and nonsense refused
	@$(BIN)/python -m tests.acceptance.ops.chart $(ARGS)

.PHONY: chart-lifecycle
chart-lifecycle: $(READY) ## Install, upgrade, roll back and uninstall it by helm: ARGS="--server real"
	@$(BIN)/python -m tests.acceptance.ops.lifecycle $(ARGS)

.PHONY: image
image: ## The container image, by docker, podman or buildah: IMAGE=quorate:dev TARGET=broker ARGS="--build-arg BASE=..."
	@helm/image/build "$(IMAGE)" "$(TARGET)" $(ARGS)

.PHONY: pods
pods: $(READY) ## The chart's pods as real containers: started, rolled, killed, deleted under load: ARGS="--only killed-pods"
	@$(BIN)/python -m tests.acceptance.ops.pods $(ARGS)

.PHONY: backup-restore
backup-restore: $(READY) ## Clusters backed up under load, destroyed, restored, judged: ARGS="--only archive"
	@$(BIN)/python -m tests.acceptance.ops.backup $(ARGS)

.PHONY: clean
clean: ## Remove the environment, caches and local clusters
	@for lock in $$(find -L .quorate var -type f "(" -name lock -o -name node.lock ")" 2>/dev/null | sort); do \
		flock --nonblock "$$lock" true || { echo "a cluster is running in $${lock%/*}: stop it first; nothing was removed" >&2; exit 1; }; \
	done
	@rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist var .quorate .coverage bench-results.json
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
