# Everything that can be done here. Each target sets up what it needs; `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# A Python this project runs on: the first of these that is 3.11, 3.12 or 3.13. Override: make PYTHON=… test
SUITS = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c '$(SUITS)' && echo $$p && break; done)

VENV := .venv
STAMP := $(VENV)/.installed
RUN := $(VENV)/bin/python
COMPAT := build/compat
# Programs that cannot live with the packages of the others; what each needs: tests/compat/<name>.txt
COMPAT_APART := recbole litgpt
COMPAT_STAMPS := $(COMPAT)/.installed $(COMPAT_APART:%=$(COMPAT)-%/.installed)
# (pytest exits with 5 if no test carries the mark asked for.)
PYTEST := $(RUN) -m pytest
# What runs here uses the environment's programs, as if it were activated.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Without its bytecode every process that a test starts would compile what it imports of ours again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all check wheel bench bench-verdicts gpu slow compat faults browser docs clean venv

help: ## List what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(STAMP) ## Tune a real training job: a small CNN on scikit-learn's digits (a few minutes)
	autotune run examples/digits/job.yaml

# What measures needs the machine to itself, and so does what has the kernel kill for want of memory,
# which it counts for the whole machine; all the rest runs three at a time, one thread each: many
# tests wait, and two of them leave two cores idle.
ALONE := $(addprefix tests/,faults/test_out_of_memory.py findings/test_planted_faults.py \
	house/test_answers_at_once.py verdict/test_loads.py)

test: $(STAMP) ## Run the tests (8 to 15 minutes on two cores): every promise of the README, see tests/README.md
	OMP_NUM_THREADS=1 $(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(ALONE))
	$(PYTEST) $(ALONE)

test-all: test slow faults compat browser ## Run all tests, one tier after another (half a day)

check: $(STAMP) ## Lint, types, and the direction of imports
	$(RUN) -m ruff check autotune trials search_spaces tests examples benchmarks docker
	$(RUN) -m ruff format --check autotune trials search_spaces tests benchmarks docker
	$(RUN) -m mypy
	$(PYTEST) -q tests/house/test_imports.py

wheel: $(STAMP) ## Build the wheel, install it in a fresh environment, use it there
	rm -rf build/wheel dist
	$(RUN) -m hatchling build -t wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	cd build/wheel && bin/python -I "$(CURDIR)/tests/house/installed_wheel.py"

bench: $(STAMP) ## Measure the agent's cost, the queue after a stall, live sessions against restarts, reading a trace, and a long search
	$(RUN) benchmarks/overhead.py
	$(RUN) benchmarks/overhead.py --direct
	$(RUN) benchmarks/full_queue.py
	$(RUN) benchmarks/live_vs_restart.py
	$(RUN) benchmarks/trace.py
	$(RUN) benchmarks/scale.py
	$(RUN) benchmarks/scale_nodes.py

bench-verdicts: $(STAMP) ## Score the two verdicts where the truth is known: planted faults, loads, simulated machines (an hour)
	for script in benchmarks/verdicts/*.py; do $(RUN) "$$script"; done

gpu: $(STAMP) ## Run the tests that need a GPU
	$(PYTEST) -m gpu || test $$? -eq 5

slow: $(STAMP) ## Run the tests that take long (two hours; a part of it: make slow SLOW=tests/agent)
	$(PYTEST) -m slow $(SLOW) || test $$? -eq 5

compat: $(STAMP) $(COMPAT_STAMPS) ## Run training programs of other projects under autotune, write docs/compatibility.md (an hour and a half)
	rm -rf build/compat-results
	status=0; AUTOTUNE_COMPAT_PYTHON=$(CURDIR)/$(COMPAT)/bin/python AUTOTUNE_COMPAT_RESULTS=$(CURDIR)/build/compat-results \
		$(PYTEST) -m compat || status=$$?; \
	$(RUN) tests/compat/page.py build/compat-results docs/compatibility.md; exit $$status

faults: $(STAMP) ## Kill, starve and disturb the tuner (two hours; a part of it: make faults FAULTS='tests/faults -k killed')
	$(PYTEST) -m faults $(FAULTS) || test $$? -eq 5

browser: $(STAMP) ## Open the report in a browser and look at it
	$(PYTEST) -m browser || test $$? -eq 5

docs: $(STAMP) ## Write docs/knobs.md, docs/job.md and docs/findings.md from the code
	$(RUN) -m autotune_spaces.docs docs/knobs.md
	$(RUN) -m autotune.job.docs docs/job.md
	$(RUN) -m autotune.findings.docs docs/findings.md

clean: ## Remove the environment, builds and caches; results in autotune-runs stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv: $(STAMP) ## Set up the environment only

# Made again only when the dependencies change. The stamp is written last: an interrupted install is repeated.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; none was found on PATH" >&2; exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || { \
		echo "making a virtual environment failed; on Debian: apt install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

define TORCHVISION_ON_CPU
site=$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	cp tests/compat/torchvision_on_cpu.py "$$site"; echo "import torchvision_on_cpu" > "$$site/torchvision_on_cpu.pth"
endef

# The programs of `make compat`: third-party packages as pinned, and no autotune.
$(COMPAT)/.installed: tests/compat/requirements.txt tests/compat/constraints.txt tests/compat/torchvision_on_cpu.py
	rm -rf $(COMPAT)
	$(PYTHON) -m venv $(COMPAT)
	$(COMPAT)/bin/python -m pip install --quiet -c tests/compat/constraints.txt -r tests/compat/requirements.txt
	$(TORCHVISION_ON_CPU)
	@touch $@

$(COMPAT)-%/.installed: tests/compat/%.txt tests/compat/torchvision_on_cpu.py
	rm -rf $(@D)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet -r $<
	$(TORCHVISION_ON_CPU)
	@touch $@
