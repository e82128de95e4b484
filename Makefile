# `make help` lists everything. Two commands are all a new user needs: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
GEN := .venv-gen/.ready
REPO ?=
TESTS ?=
SEED ?=
ROUNDS ?=
FUZZ := tests/rpc/test_garbage.py tests/rpc/test_garbage_internal.py tests/unit/decoders \
	tests/rpc/launch/test_run_machine.py tests/rpc/children/test_ledger.py tests/rpc/children/test_spawn_machine.py tests/rpc/approvals/test_machine.py
SECONDS ?=
RUNS ?=
MINUTES ?=
BEATS ?=
RATE ?=
DRILLS ?=
ROWS ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test models simulate soak mutants fuzz chaos dev lint types gen gen-check bench bench-check numbers lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':[^#]*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml libs/contracts/pyproject.toml libs/sdk/pyproject.toml
	@command -v git >/dev/null || { echo "git is needed: apt install git"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "Python 3.11 is needed: make PYTHON=python3.11 …"; exit 1; }
	@echo "installing the locked packages into $(VENV), once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --require-hashes --requirement requirements.lock
	@$(BIN)/pip install -qq --no-deps --no-build-isolation --editable libs/contracts --editable libs/sdk --editable .
	@touch $@

$(GEN): libs/contracts/generator.lock
	$(PYTHON) -m venv .venv-gen
	.venv-gen/bin/pip install --quiet --require-hashes --requirement libs/contracts/generator.lock
	@touch $@

demo: $(READY)  ## a crash survived, on a sample repository; REPO=path for your own (only a clone is touched)
	@$(BIN)/runway demo --data build/demo $$(test -t 0 || echo --yes) $(if $(value REPO),--repo '$(subst ','\'',$(value REPO))')

test: $(READY) $(GEN)  ## every test, on real PostgreSQL and etcd; TESTS=path for some of them
	$(BIN)/python -m pytest -n 2 $(TESTS)

chaos: $(READY)  ## every drill on real processes, reports in build/chaos; DRILLS=kill-launch,… PAUSE=15 JOBS=2 for some, shorter, two at a time
	@$(BIN)/runway drill $(or $(DRILLS),all) $(if $(PAUSE),--pause-s $(PAUSE)) $(if $(JOBS),--jobs $(JOBS))

models: $(READY)  ## the protocols as explicit-state models within wide bounds, and every mutant; minutes
	$(BIN)/python -m tests.models

fuzz: $(READY)  ## nonsense for every RPC, event and decoder, and random lives of runs, ledgers, approvals and spawns, for minutes; SEED=… and ROUNDS=… replay what it printed
	@seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); rounds=$(or $(ROUNDS),80); \
	echo "seed $$seed, $$rounds rounds; again: make fuzz SEED=$$seed ROUNDS=$$rounds"; \
	RUNWAY_TEST_SEED=$$seed RUNWAY_TEST_GARBAGE_ROUNDS=$$rounds $(BIN)/python -m pytest --timeout 1800 $(FUZZ)

simulate: $(READY)  ## one seed of the simulation with its history, SEED=1
	@$(BIN)/python -m tests.simulation --seed $(or $(SEED),1)

soak: $(READY)  ## seeds of the simulation for SECONDS=600 from SEED=1 on, then the seeds' day RUNS=100000, 10,000 live attempts for twice BEATS=300 s, then steady load for MINUTES=60; 0: without
	$(if $(filter 0,$(SECONDS)),,$(BIN)/python -m tests.simulation --soak $(or $(SECONDS),600) --seed $(or $(SEED),1))
	$(if $(filter 0,$(RUNS)),,$(BIN)/python -m tests.bench day $(or $(RUNS),100000) 60)
	$(if $(filter 0,$(BEATS)),,$(BIN)/python -m tests.bench heartbeats --seconds $(or $(BEATS),300))
	$(if $(filter 0,$(MINUTES)),,$(BIN)/python -m tests.bench steady $(or $(MINUTES),60) $(or $(RATE),30))

mutants: $(READY)  ## every guard of the simulation's list taken out, on the day made for it, SEED=1; a minute
	$(BIN)/python -m tests.simulation --mutants --seed $(or $(SEED),1)

dev: $(READY)  ## an installation in .runway, until Ctrl-C
	@$(BIN)/runway dev

lint: $(READY)  ## ruff, import rules, proto lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code

types: $(READY)  ## mypy, strict
	$(BIN)/mypy services libs

gen: $(GEN)  ## writes the stubs of proto/ into libs/contracts
	.venv-gen/bin/python libs/contracts/generate.py

gen-check: $(GEN)  ## compares the committed stubs with proto/
	.venv-gen/bin/python libs/contracts/generate.py --check

bench: $(READY)  ## steps, launches, latency, growth beside Restate, DBOS and Temporal, into build/bench; 15 minutes
	$(BIN)/python -m tests.bench

numbers: $(READY)  ## what scheduling promises, at full size, into build/bench; 20 minutes; ROWS="flood shares takeover queue heartbeats" for some
	@failed=; for row in $(or $(ROWS),flood shares takeover queue heartbeats); do $(BIN)/python -m tests.bench $$row || failed="$$failed $$row"; done; \
	test -z "$$failed" || { echo "a bound is missed:$$failed"; exit 1; }

bench-check: $(READY)  ## what a step costs now, against tests/bench/ranges.json; half a minute
	$(BIN)/python -m tests.bench check

lock: $(READY)  ## resolves the dependencies again, into requirements.lock
	$(BIN)/python deploy/lock.py

clean:  ## removes what these targets made
	rm -rf build $(VENV) .venv-gen .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
