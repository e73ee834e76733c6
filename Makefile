# Every target does its own set-up, cached by content: a second run, or another clone, starts in seconds.
# Needs: Linux, Python 3.11 or newer, make. The node, the images and the demo need root on Debian and Go.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
BIN := .venv/bin
# The project is not installed in the environment, which clones share: it is found here.
export PYTHONPATH := $(CURDIR):$(CURDIR)/sdk:$(CURDIR)/operator:$(CURDIR)/agent:$(CURDIR)/cli:$(CURDIR)/examples
# Some machines set it; then each of the many processes that tests start would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

PACKAGES := sdk operator agent cli
CHECKED := $(PACKAGES) tools tests examples
# Extra arguments for the program that a target runs, such as: make test ARGS="-k digest".
ARGS ?=
# Processes among which the whole of the tests is shared out; a part of them (ARGS) runs in one.
WORKERS ?= $(if $(ARGS),,auto)
# Of `make simulate`: how many schedules, and the seed of the first.
SCHEDULES ?= 20000
SEED ?= 0
# What the tests need: as root everything, elsewhere what needs no root (the rest is then skipped, aloud).
TEST_SETUP := $(if $(filter 0,$(shell id -u)),all,libraries env oldest sglang light)

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Set up everything: environment, Debian packages, binaries, images
	@$(PYTHON) tools/setup all

.PHONY: env
env: ## Set up the Python environment, linked as .venv
	@$(PYTHON) tools/setup env

# By module and content, so that another clone begins with what this one has checked.
check: export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/weightsync/mypy

.PHONY: check
check: env ## Lint, types, import rules, generated files
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy $(PACKAGES) tools
	$(BIN)/lint-imports
	$(BIN)/python -m tools.generate --check

.PHONY: docs
docs: ## Build the documentation into build/docs; a warning fails
	@$(PYTHON) tools/docs $(ARGS)

.PHONY: audit
audit: ## Look for flaws in the packages (bandit); what is not accepted fails
	@$(PYTHON) tools/audit code

.PHONY: sbom
sbom: ## List what the image holds, as CycloneDX, in build/sbom.json (root)
	@$(PYTHON) tools/setup debian
	@$(PYTHON) tools/audit sbom

.PHONY: generate
generate: env ## Write the generated files anew
	$(BIN)/python -m tools.generate

.PHONY: test
test: ## Unit, property, real API server, real node
	@$(PYTHON) tools/setup $(TEST_SETUP)
	$(BIN)/python -m pytest $(if $(WORKERS),--numprocesses $(WORKERS)) $(ARGS)

# What runs no tests runs beside them, since they often wait; what it says comes in one piece when it has ended.
.PHONY: ci
ci: env ## What CI runs: check, audit, docs and test
	@$(MAKE) --jobs=2 test static

.PHONY: static
static:
	@nice $(MAKE) --output-sync=target check audit docs

.PHONY: cluster
cluster: ## Start the local one-node Kubernetes (root)
	@$(PYTHON) tools/cluster up

.PHONY: cluster-down
cluster-down: ## End it and remove everything it left
	@$(PYTHON) tools/cluster down

.PHONY: cluster-status
cluster-status: ## Say what of it runs
	@$(PYTHON) tools/cluster status

.PHONY: image
image: ## Build the images
	@$(PYTHON) tools/setup debian
	@$(PYTHON) tools/images build

.PHONY: demo
demo: env ## Run the main job on a real cluster and show what happens
	@$(BIN)/python tools/demo $(ARGS)

.PHONY: demo-elastic
demo-elastic: env ## Two, eight, three engines on the local node while training goes on, the trainer killed and back (root)
	@$(BIN)/python tools/demo elastic $(ARGS)

.PHONY: bench-transfer
bench-transfer: ## Measure publish to verified against raw Mooncake; writes build/bench/transfer.json
	@$(PYTHON) tools/setup libraries env
	$(BIN)/python tools/bench transfer $(ARGS)

.PHONY: rdma-test
rdma-test: ## Test over real verbs, in guests with a soft-RoCE device (root on Debian for amd64)
	@$(PYTHON) tools/setup guest env
	$(BIN)/python -m tests.rdma.run $(ARGS)

.PHONY: rdma-e2e
rdma-e2e: ## Chart, trainer and engines on two guests as nodes, weights over verbs (root on Debian for amd64)
	@$(PYTHON) tools/setup guest-cluster env images examples-env
	$(BIN)/python -m tests.rdma_e2e.run $(ARGS)

.PHONY: bench-scale
bench-scale: ## Measure the operator with 10,000 pods on a real API server; writes build/bench/scale.json
	@$(PYTHON) tools/setup libraries env light
	$(BIN)/python tools/bench scale $(ARGS)

.PHONY: bench-relay
bench-relay: ## Measure a sync to 8 engines over links of 50 MB/s, each pod in a network namespace (root); build/bench/relay.json
	@$(PYTHON) tools/setup libraries env
	$(BIN)/python tools/bench relay $(ARGS)

.PHONY: bench-convert
bench-convert: ## Measure copies against memcpy and load_weights, digests, filling beside writing; build/bench/convert.json
	@$(PYTHON) tools/setup libraries env sglang
	$(BIN)/python tools/bench convert $(ARGS)

.PHONY: bench-gpu
bench-gpu: ## On an NVIDIA GPU where SGLang imports: a trainer's CUDA tensors to a real engine; build/bench/gpu.json
	$(PYTHON) tools/bench gpu $(ARGS)

.PHONY: chaos
chaos: ## Make every part fail in a running world; writes build/chaos/report.json
	@$(PYTHON) tools/setup libraries env light
	$(BIN)/python tools/chaos $(ARGS)

.PHONY: chaos-node
chaos-node: ## Make every part fail on the local node, under a kubelet (root); writes build/chaos/node.json
	@$(PYTHON) tools/setup all
	$(BIN)/python tools/chaos --node $(ARGS)

.PHONY: simulate
simulate: env ## Simulate the protocol with all faults: make simulate SCHEDULES=n SEED=s; writes build/simulate
	$(BIN)/python -m tools.simulate --schedules $(SCHEDULES) --seed $(SEED) $(ARGS)

.PHONY: report
report: env ## Print the reports under build/ as a table; fails where a bound is broken
	@$(BIN)/python tools/report
