# Every target sets up what it needs in .venv, on a machine with Python 3.11 or newer and make; the second time is quick.
# The first of these that runs and is new enough; set PYTHON= to take another.
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11 python; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(wildcard protos/odp/v1/*.proto)
# The image of the last released protos: `make lint` refuses changes that would break a client built from them.
BASELINE := protos/released.binpb
ARGS ?=
# An argument of $(call) ends at a comma.
COMMA := ,
# Installs into the environment $(1) what $(2) names: by pip, or with `make UV=uv` by uv, in a third of the time. uv reads none of
# pip's settings, as of a mirror, so that nothing picks it by itself; where it fails, pip installs.
INSTALL = $(if $(UV),$(UV) pip install --quiet --python $(1)/bin/python $(filter-out --no-compile,$(2)) ||) \
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2)
# An environment made before the distribution was named odp-platform has it by its old name, which ODP refuses beside itself.
FORGET_OLD_NAME = $(1)/python -m pip uninstall --quiet --yes --disable-pip-version-check odp 2>/dev/null

.DEFAULT_GOAL := help
.PHONY: help demo test test-all proof test-keras tff-env test-tff test-extras docs images lint proto proto-release bench clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/core: pyproject.toml
	@test -x $(BIN)/python || test -n "$(PYTHON)" || { echo "ODP needs Python 3.11 or newer; set PYTHON="; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call FORGET_OLD_NAME,$(BIN))
	$(call INSTALL,$(VENV),--editable .)
	@touch $@

# Compiled once, before several workers import the same modules at the same time; but for what tests load next to nothing of:
# half of all that is installed. A file that is no code of this Python is no failure, as for pip.
UNCOMPILED := /(tests|ray/(rllib|tune|serve|train|data|llm)|sympy|moto|networkx|pip|mypy|mypyc|selenium|playwright|cfnlint)/
$(VENV)/dev: $(VENV)/core
	$(call INSTALL,$(VENV),--no-compile --editable '.[dev]')
	-@$(BIN)/python -m compileall -qq -x '$(UNCOMPILED)' $(VENV)/lib
	@touch $@

# Apart from the others: TensorFlow is large, and nothing but tests of compiled networks needs it. What is imported of these
# environments is compiled then, which is a part of what they hold.
$(VENV)-keras/keras: pyproject.toml
	@test -x $(VENV)-keras/bin/python || $(PYTHON) -m venv $(VENV)-keras
	@$(call FORGET_OLD_NAME,$(VENV)-keras/bin)
	$(call INSTALL,$(VENV)-keras,--no-compile --editable '.[keras$(COMMA)dev]')
	@touch $@

demo: $(VENV)/core ## Train a private model over real processes, in a minute (ARGS="--help" lists options)
	$(BIN)/odp demo $(ARGS)

# Four workers for two cores, as end-to-end tests wait for each other's programs; conftest.py puts the long files first.
# Without these, two: each worker collects all tests for itself, which takes 19 s of processor.
WORKERS = 4
test: WORKERS = 2
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests start hundreds of programs, each of which would compile all its modules where an image turns bytecode off.
test test-all proof: export PYTHONDONTWRITEBYTECODE :=
# Threads of BLAS in several workers would mostly wait for each other.
test test-all proof test-keras: export OPENBLAS_NUM_THREADS := 1
# That of trio would keep a further source of randomness at its state around each example, of which no test draws.
test test-all proof test-keras: export HYPOTHESIS_NO_PLUGINS := 1

test: $(VENV)/dev ## Run the tests that start no programs, and one for each party and mode (ARGS="-k name" picks some)
	$(PYTEST) -m "not slow and not proof" $(ARGS)

test-all: $(VENV)/dev ## Run all tests, as CI does; most of their time is that of programs
	$(PYTEST) -m "not proof" $(ARGS)

# It needs what .ci/run installs: Chromium, PostgreSQL, promtool and a C compiler.
proof: $(VENV)/dev $(VENV)-keras/keras docs ## Run what takes hours or needs a quiet machine: kills at every step, attacks with real clocks, operators' pages
	$(BIN)/python -m pytest -m proof $(ARGS)
	$(VENV)-keras/bin/python -m pytest -m proof $(KERAS_TESTS)
	$(BIN)/python tests/security/planted_bugs.py
	$(BIN)/python tests/security/transcript_trials.py --seed 1
	$(BIN)/python tests/faults/campaign.py --seed 1 --trials 200
	$(MAKE) test-tff ARGS="-m proof"

# The tests that need TensorFlow: all others of these folders run without it, in the environment of `make test-all`.
KERAS_TESTS = $(foreach file,litert_compiler keras_model tensorflow_runner two_tower,tests/models/litert/test_$(file).py) \
	tests/e2e/test_federated_network.py tests/e2e/test_geyer_on_devices.py \
	tests/documentation/test_tutorials.py::test_a_federated_keras_network_is_trained \
	tests/research/reproductions/test_movielens_towers.py \
	tests/research/reproductions/test_gradient_features.py::test_a_keras_network_computes_the_same_and_its_training_is_that_of_the_glm
# In one process: a second one would import TensorFlow again, which takes as long as compiling five networks, and CI runs these
# tests beside all others, whose workers fill both cores.
test-keras: $(VENV)-keras/keras ## Run the tests of networks with TensorFlow, in an environment of their own
	$(VENV)-keras/bin/python -m pytest -m "not proof" $(KERAS_TESTS) $(ARGS)

# TensorFlow Federated runs on Python 3.11 alone, beside packages that the core library does not want everywhere.
TFF_PYTHON ?= python3.11
TFF_VENV := .venv-tff

$(TFF_VENV)/made: tools/tff-environment.txt pyproject.toml
	@$(TFF_PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
		|| { echo "TensorFlow Federated needs Python 3.11; set TFF_PYTHON="; exit 1; }
	$(TFF_PYTHON) -m venv $(TFF_VENV)
	$(call INSTALL,$(TFF_VENV),--no-compile --no-deps --requirement $<)
	@$(call FORGET_OLD_NAME,$(TFF_VENV)/bin)
	$(call INSTALL,$(TFF_VENV),--no-deps --no-build-isolation --editable .)
	@touch $@

tff-env: $(TFF_VENV)/made ## Make the environment of TensorFlow Federated: 3 GB, a few minutes

test-tff: $(TFF_VENV)/made ## Compare with TensorFlow Federated
	$(TFF_VENV)/bin/python -m pytest -m "not proof" tests/research/interop $(ARGS)

test-extras: ## Install each extra into a clean environment and check what it adds (ARGS="data device" picks some)
	$(PYTHON) tools/check_extras.py $(ARGS)

# Apart from the others, too: a site is built from the text of the code, which nothing here imports.
$(VENV)-docs/docs: pyproject.toml
	@test -x $(VENV)-docs/bin/python || $(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' \
		>$(VENV)-docs/requirements.txt
	$(call INSTALL,$(VENV)-docs,--no-compile --requirement $(VENV)-docs/requirements.txt)
	@touch $@

docs: $(VENV)-docs/docs ## Build the docs site into site/, and check its links and that it calls no other host
	NO_MKDOCS_2_WARNING=true $(VENV)-docs/bin/python -m mkdocs build --quiet --strict --clean
	$(VENV)-docs/bin/python tools/check_site.py site
	@echo "open site/index.html"

images: $(VENV)/dev docs ## Make the pictures of docs/images again (ARGS="report demo" picks some); needs Chromium
	$(BIN)/python tools/make_images.py $(ARGS)

lint: $(VENV)/dev ## Check style, types, protos, and that the generated code is fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.toml
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code protos
	$(BIN)/buf breaking --against $(BASELINE)
	$(BIN)/python tools/generate_protos.py --check
	$(BIN)/python tools/notebooks.py --check

proto: $(VENV)/dev ## Generate odp/v1 from protos/
	$(BIN)/buf format --write protos
	$(BIN)/python tools/generate_protos.py

proto-release: $(VENV)/dev ## Make the present protos the ones that later changes must not break
	$(BIN)/buf build --output $(BASELINE)

bench: $(VENV)/dev ## Run all benchmarks (ARGS="demo --quick" picks one)
	$(BIN)/python -m benchmarks $(if $(ARGS),$(ARGS),all)

clean: ## Remove what the targets made
	rm -rf $(VENV) $(VENV)-keras $(VENV)-docs $(TFF_VENV) site build dist *.egg-info .mypy_cache .ruff_cache .hypothesis
