# make demo   everything from nothing: set up, deploy the tiny pair in the sandbox, stream an answer
# make check  before a commit: format, style, types, unit tests
# make unit   the quick unit tests alone, on all cores
# make test   set up and run the tests, real vLLM among them: 12 minutes on 2 cores
# make test-all  all tests, as CI does: also many more broken pairs, faults, random walks and inputs
# make checkov  install checkov, with which `make test-all` checks the rendered templates
# make docs   write docs/cli.md and docs/errors.md from the code
# make faults every AWS call of deploy, update, rollback and destroy fails in every way
# make fuzz   random inputs for every parser: N=10000 of each, ONLY=part-of-a-name
# make lifecycle  random commands with random faults in random states of the account; N=100 walks
# make audit  known vulnerabilities of the locked packages; needs a network
# make aws-smoke  the life of a deployment on your AWS account; asks first, about a dollar
.PHONY: help demo docs test test-all checkov faults fuzz lifecycle aws-smoke unit check lint style types format lock audit benchmark engine trainer clean

PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11; do \
	$$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo $$candidate && break; done)
# Or each of many processes compiles what it imports again.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

help:
	@sed -n 's/^# //p; /^.PHONY/q' Makefile

demo: .venv/sandbox.ready engine
	@$(BIN)/peagle demo

# Quick tests first; a group of slow ones, which share an engine, stays on one worker.
SUITE = $(BIN)/pytest -n logical --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

test: .venv/dev.ready engine
	$(SUITE) -m 'not exhaustive'

test-all: .venv/dev.ready checkov trainer
	$(SUITE)

checkov: .venv/checkov.ready

# What a test compares with the code.
docs: .venv/dev.ready
	$(BIN)/python -m tools.docs

# FAULTS="--every 10" runs fewer.
faults: .venv/dev.ready
	$(BIN)/python -m tests.faults $(FAULTS)

# SEED=100 begins with another walk; a walk that violates an invariant is saved in tests/lifecycle/found.
lifecycle: .venv/dev.ready
	$(BIN)/python -m tests.lifecycle -n $(or $(N),100) --first $(or $(SEED),0)

fuzz: .venv/dev.ready
	FUZZ_INPUTS=$(or $(N),10000) $(BIN)/pytest tests/fuzz -n logical -k "$(ONLY)"

aws-smoke: .venv/core.ready
	$(BIN)/python -m tests.aws.smoke $(SMOKE)

unit: .venv/dev.ready
	$(BIN)/pytest tests/unit -m 'not thorough and not exhaustive' -n logical --dist worksteal

check: style types unit

style: .venv/dev.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: .venv/dev.ready
	$(BIN)/mypy toolkit/peagle containers/peagle_serve tests measurements tools

# torch, which examples/tiny needs, is in the engine's environment and not in ours.
lint: style types engine
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml --severity-level medium \
		toolkit containers measurements tools examples
	$(BIN)/mypy --python-executable "$$($(BIN)/peagle engine status --json | \
		$(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["python"])')" examples

format: .venv/dev.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: .venv/dev.ready
	for name in core report sandbox sagemaker dev; do \
		extra=$$([ $$name = core ] || echo --extra $$name); \
		$(BIN)/uv pip compile pyproject.toml $$extra --universal --python-version 3.11 \
			--generate-hashes --no-header --no-annotate --quiet --upgrade \
			--output-file requirements/$$name.txt || exit 1; \
	done
	cd requirements && ../$(BIN)/uv pip compile aiperf.in --excludes aiperf.excludes --universal \
		--python-version 3.11 --generate-hashes --no-header --no-annotate --quiet --upgrade \
		--output-file aiperf.txt
	for kind in cpu gpu; do \
		(cd requirements/trainer && ../../$(BIN)/uv pip compile trainer.in --excludes $$kind.excludes \
			--universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet \
			--upgrade --output-file $$kind.txt) || exit 1; \
	done
	sed -i 's/^torch==/torch===/' requirements/trainer/gpu.txt
	cd requirements && ../$(BIN)/uv pip compile checkov.in --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade --output-file checkov.txt
	grep -A 2 '^sagemaker-core==' requirements/sagemaker.txt | grep -v '^[^s ]' >requirements/sdk.txt
	echo sagemaker-hyperpod | $(BIN)/uv pip compile - --no-deps --universal --python-version 3.11 \
		--generate-hashes --no-header --no-annotate --quiet --upgrade \
		--output-file requirements/hyperpod.txt
	$(BIN)/python -m tools.wheel_sbom requirements/core.txt >requirements/core.cdx.json

# Known vulnerabilities of the locked packages, where the service with the list can be reached.
audit: .venv/dev.ready
	@$(PIP) install pip-audit
	@.ci/audit $(BIN)/python requirements/*.txt requirements/engine/*/requirements.txt

benchmark: .venv/dev.ready
	$(BIN)/python -m measurements

# After .venv/*.ready in every list of needs, so that there is a peagle to ask.
engine:
	@$(BIN)/peagle engine install

# With which `make test-all` trains a head.
trainer: engine
	@$(BIN)/peagle engine install --trainer

clean:
	rm -rf .venv build dist *.egg-info

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 here (install one, or: make PYTHON=/path/to/python3)" >&2; exit 2; }
	@.ci/system-packages $(PYTHON)
	@$(PYTHON) -m venv .venv || { rm -rf .venv; echo "error: $(PYTHON) cannot make a virtual environment (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 2; }

# checkov needs other versions of our packages, so it has an environment of its own, of 200 MB.
.venv/checkov.ready: requirements/checkov.txt | .venv/bin/python
	@echo "Installing requirements/checkov.txt into .venv/checkov ..."
	@$(BIN)/python -m venv --clear --without-pip .venv/checkov
	@$(PIP) --python .venv/checkov/bin/python install --no-deps --no-compile --require-hashes \
		-r requirements/checkov.txt
	@touch $@

# Of the SageMaker SDK the tests only read its table of images (requirements/sdk.txt), and of the CLI
# of HyperPod the models of its operator (requirements/hyperpod.txt): nothing that these need.
# Python compiles a module when it is first imported; most of these never are.
.venv/%.ready: requirements/%.txt pyproject.toml | .venv/bin/python
	@echo "Installing requirements/$*.txt into .venv ..."
	@$(PIP) install --no-compile --require-hashes -r requirements/$*.txt
	@$(PIP) install --no-compile --no-deps --editable .
	@[ $* != dev ] || $(PIP) install --no-compile --no-deps --require-hashes \
		-r requirements/sdk.txt -r requirements/hyperpod.txt
	@touch $@
