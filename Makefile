# make run    set up, run the example on many GPUs, print the table, serve the UI     (SERVE=0 stops after the table)
# make test   set up and run all tests; one table at the end                          (make test-long: the slow ones)
# make cluster  Kafka, ingest, simworkers, aggregator, gateway and page on this machine, until interrupted
# make chaos    30 minutes (or SECONDS=N) of runs on a real broker while services and broker are killed and stopped
# make test-cluster  the cluster's tests alone, on a real Kafka broker
# make test-vllm  the profiler in a real vLLM engine, on the CPU (an environment of its own, .venv-vllm)
# make e2e    the page's tests alone, in a real Chromium
# make screenshots  pictures of every screen in both themes, docs/screenshots, of the bundled sample's run
# make check  formatting, lint, types of Python and TypeScript
# make bench  speed, as ratios within one run
# make accuracy  the error map, docs/accuracy.md, from measured tables (in ../shared or CASCADE_SHARED)

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
SERVE ?= 1
BIN := .venv/bin
STARTED := $(shell date +%s)

.PHONY: run setup web test test-long cluster chaos test-cluster test-vllm check bench screenshots schemas accuracy clean

setup:
	@$(PYTHON) infra/setup.py run

run: setup
	@$(BIN)/python infra/example.py --started $(STARTED) --serve $(SERVE) --python $(PYTHON)

web:
	@$(PYTHON) infra/setup.py run web
	@$(BIN)/python infra/web.py build

test:
	@$(PYTHON) infra/setup.py run test sass cluster
	@$(BIN)/python tests/run_all.py

test-long:
	@$(PYTHON) infra/setup.py run test sass cluster
	@$(BIN)/python tests/run_all.py --long

cluster:
	@$(PYTHON) infra/setup.py run cluster sass
	@$(PYTHON) infra/web.py ensure || echo "the page could not be built; REST and WebSocket are served without it"
	@$(BIN)/python infra/cluster.py

chaos:
	@$(PYTHON) infra/setup.py run test sass cluster
	@$(BIN)/python -m tests.cluster.chaos --seconds $(or $(SECONDS),1800)

test-cluster:
	@$(PYTHON) infra/setup.py run test sass cluster
	@$(BIN)/python -m pytest -q tests/cluster

test-vllm: setup
	@$(PYTHON) infra/setup.py vllm
	@.venv-vllm/bin/python -m pytest -q tests/vllm

e2e: web
	@$(PYTHON) infra/setup.py run test
	@$(BIN)/python -m pytest -q tests/e2e

check:
	@$(PYTHON) infra/setup.py run test sass cluster web
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python infra/web.py check

bench: setup
	@$(PYTHON) infra/setup.py run test sass cluster
	@$(BIN)/python -m tests.bench

screenshots: setup
	@$(PYTHON) infra/setup.py run test web
	@CASCADE_SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest -q tests/e2e/test_screens.py -k serious

accuracy:
	@$(PYTHON) infra/setup.py run test
	@$(BIN)/python -m services.simworker.calibration.accuracy --data $(or $(CASCADE_SHARED),../shared)/data

schemas: setup
	@$(BIN)/python -m cascade_schemas.generate

clean:
	rm -rf .venv .venv-vllm web/node_modules web/dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
