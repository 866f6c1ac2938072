# Everything a developer runs. Needs python3 (3.11 or newer) with pip or venv, and a package index; builds the rest into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# -I: neither the working directory nor the user's site on sys.path. The folder operator/ must never meet `import operator`.
PY     := $(BIN)/python -I
# Each stamp is newer than all files that its environment is built from, so a changed requirement rebuilds it.
STAMP  := $(VENV)/.installed
# Targets that need only the gateway use the environment of the tests if it exists.
GATEWAY := $(if $(wildcard $(STAMP)),$(STAMP),$(VENV)/.installed-run)
MKDOCS := .cache/docs/bin/python -I -m mkdocs
# The number of processes of `make test`: twice the processors of a small machine, because the tests start real servers
# and wait for them most of the time. None of them measures speed.
JOBS   ?= 4
# Paths of the tests to run; empty for all.
TESTS  ?=
# The length of a soak test in minutes.
SOAK   ?= 30
UV     := .cache/uv/uv
# Many container images set it. The targets start Python repeatedly, in an environment that `make clean` removes:
# without bytecode, each `fairlead serve` of the tests would compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE
# The cache of `make lint`, in .cache with the others.
export MYPY_CACHE_DIR ?= .cache/mypy

.DEFAULT_GOAL := help
.PHONY: help venv fmt lint test run docs docs-serve bench bench-record abuse soak chart-docs manifests prometheus helm4 dex image cluster cluster-down e2e trial requirements clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## Build .venv from the hashed requirements (rebuilt when they change)

# One .venv in two steps: `make run` needs only the gateway's packages, the tests and linters add theirs.
$(STAMP): requirements/dev.txt pyproject.toml
	$(call install,dev)

$(VENV)/.installed-run: requirements/gateway.txt requirements/build.txt pyproject.toml
	$(call install,run)

define install
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "error: $(PYTHON) was not found; install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $$($(PYTHON) --version 2>&1) is too old, Fairlead needs 3.11 or newer; name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -I requirements/install.py $(1)
endef

fmt: $(STAMP) ## Format the code and sort the imports
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

lint: $(STAMP) ## ruff, mypy --strict on source and tests, and the contracts between the rooms
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m mypy --strict --explicit-package-bases tests charts
	MYPYPATH=tests/tools/cluster $(PY) -m mypy --strict tests/tools/cluster/*.py
	$(PY) -m mypy --strict tests/tools/programs/__main__.py requirements/*.py
	$(PY) -m mypy --strict --ignore-missing-imports docs/theme
	$(BIN)/lint-imports

test: $(STAMP) ## All tests, from nothing: real servers, real sockets, a real Valkey
	$(PY) -m pytest -n $(JOBS) --dist worksteal $(TESTS)

run: $(GATEWAY) ## Two gateway nodes, their Valkey and three agents on this machine (RUN="--port 0" for free ports)
	@exec $(BIN)/fairlead demo $(RUN)

docs: $(GATEWAY) .cache/docs/.installed ## The documentation as a site, into site/; a broken link or diagram fails
	@NO_MKDOCS_2_WARNING=1 $(MKDOCS) build --clean
	@echo "site/index.html"

docs-serve: $(GATEWAY) .cache/docs/.installed ## The documentation at http://127.0.0.1:8000, rebuilt when a page changes
	@NO_MKDOCS_2_WARNING=1 $(MKDOCS) serve

.cache/docs/.installed: requirements/docs.txt
	$(call install,docs)

soak: $(STAMP) ## Faults in random order, with commands on all agents (SOAK=30 minutes, SEED=… replays)
	$(PY) -m faults.run --soak $(SOAK) $(if $(SEED),--seed $(SEED))

abuse: $(STAMP) ## Attacks on a real node, with what its owner sees meanwhile (ATTACK=… one of them; SOAK=… minutes of fuzzing)
	$(PY) -m abuse.run $(if $(ATTACK),--attack $(ATTACK)) $(if $(filter command line,$(origin SOAK)),--soak $(SOAK))

bench: $(STAMP) ## The benchmarks
	$(PY) -m bench.links.run
	$(PY) -m bench.links.credentials
	$(PY) -m bench.nodes
	$(PY) -m bench.workers
	$(PY) -m bench.market.run
	$(PY) -m bench.hosts.run
	$(PY) -m bench.agent.lanes
	$(PY) -m bench.agent.handlers
	$(PY) -m bench.commands.http_side
	$(PY) -m bench.commands.deadlines
	$(PY) -m bench.commands.lists
	$(PY) -m bench.commands.selectors
	$(PY) -m bench.commands.runs --ssh 200
	$(PY) -m bench.commands.contents
	$(PY) -m bench.commands.events
	$(PY) -m bench.commands.tracing
	$(PY) -m bench.commands.signatures
	$(PY) -m bench.store_sizes
	$(PY) -m bench.hold
	$(PY) -m bench.storm
	$(PY) -m bench.endurance
	$(PY) -m bench.moving.moves
	$(PY) -m bench.moving.rebalance
	$(PY) -m bench.moving.simulator --trace day --agents 1e6 1e7 --minutes 5

bench-record: $(STAMP) ## The tables of record into docs/benchmarks.md, within an hour (RECORD=--resume continues after an interruption)
	$(PY) -m bench.record.run $(RECORD)

chart-docs: $(STAMP) ## The chart's CRDs, schema, README, dashboards and alerts from their sources
	$(PY) charts/generate.py
	$(PY) charts/observability

manifests: chart-docs ## k8s/*.yaml from the chart (HELM=… names the program)
	$(PY) charts/manifests.py $(if $(HELM),--helm $(HELM))

prometheus: ## Prometheus and promtool from their Go module (minutes once); tests/observability asks them
	@$(PYTHON) -I tests/tools/programs prometheus

helm4: ## Helm 4 from its Go module (minutes once); tests/chart and make e2e use it
	@$(PYTHON) -I tests/tools/programs helm4

dex: ## Dex, an OpenID provider, from its Go module (minutes once); tests/cli logs in at it
	@$(PYTHON) -I tests/tools/programs dex

image: ## Build the images gateway, operator and valkey, and load them into the cluster that runs
	@$(PYTHON) -I tests/tools/cluster image $(IMAGES)

cluster: ## A real Kubernetes on this machine (Linux, root, Go), or the one that KUBECONFIG names
	@$(PYTHON) -I tests/tools/cluster up

cluster-down: ## Stop that cluster and remove its data
	@$(PYTHON) -I tests/tools/cluster down

# -s: the tests print their progress; -x: each chapter begins where the previous one ended; --tb=short: the last lines
# of the output then give the reason and the state of the cluster.
e2e: $(STAMP) cluster image ## The end-to-end story on that cluster: install, grow, roll, shrink, faults, upgrade, uninstall
	FAIRLEAD_E2E=1 $(PY) -m pytest -x -s --tb=short tests/cluster tests/e2e

# Not part of .ci/run: it takes most of an hour, and reports figures instead of passing or failing.
trial: $(STAMP) cluster image ## 2,000 agents with commands on that cluster, fault after fault, beside a plain Deployment with HPA (AGENTS=…; OLDER=COMMIT: an upgrade from it, and back)
	$(PY) -m trial.run $(if $(AGENTS),--agents $(AGENTS)) $(if $(OLDER),--older $(OLDER))

requirements: $(UV) ## Compile requirements/*.txt anew from pyproject.toml (UPGRADE=1 takes newer versions)
	$(call compile,base,)
	$(call compile,gateway,--extra gateway --extra cli)
	$(call compile,operator,--extra operator)
	$(call compile,dev,--extra gateway --extra cli --extra operator --extra simulator --group dev)
	$(call compile,build,,requirements/build.in)
	$(call compile,docs,-c requirements/dev.txt,requirements/docs.in)
	$(call compile,uv,,requirements/uv.in)
	$(call compile,bench,-c requirements/dev.txt,requirements/bench.in)

# No header, no annotations, no index: the files contain versions and hashes, but no host name.
define compile
$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade) $(2) $(or $(3),pyproject.toml) -o requirements/$(1).txt
endef

$(UV): requirements/uv.txt
	$(call install,uv)

clean: ## Remove the environment, the caches and the demo's data
	rm -rf $(VENV) .cache .fairlead .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build site
	find gateway operator tests -name __pycache__ -type d -prune -exec rm -rf {} +
