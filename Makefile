# Each target first creates the `.venv` that it needs, and updates it only if pyproject.toml or constraints.txt has
# changed.

PYTHON ?= python3
TORCH_INDEX ?=
SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')

VENV := .venv
PIP := -m pip --disable-pip-version-check
PINNED := pyproject.toml constraints.txt

.PHONY: help serve test test-all fuzz docs site dev experiments-quick soak docker-test constraints clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s  %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'PYTHON=python3.12 makes .venv with this Python, 3.11 or later; if there is a .venv, `make clean` first.'
	@echo 'TORCH_INDEX=URL adds a package index for torch, such as the one of CPU builds.'

serve: $(VENV)/.serve ## serve models/ on port 8000 (CAPSNET_PORT); installs the CPU runtime, without torch
	@exec $(VENV)/bin/capsnet-serve

test: $(VENV)/.dev ## run ruff, mypy, import-linter, the build of the site, and the tests, but for those that take long
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python -m docs.build
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -n auto --maxprocesses 4 --dist worksteal

test-all: $(VENV)/.dev ## run all tests, with those that take long
	OMP_NUM_THREADS=1 $(VENV)/bin/pytest -m '' -n auto --maxprocesses 4 --dist worksteal

fuzz: $(VENV)/.dev ## send the service more than 20,000 requests, most of them invalid (SEED=7 repeats a run)
	$(VENV)/bin/pytest tests/fuzz --hypothesis-profile=fuzz --hypothesis-seed=$(SEED) --timeout=3600

docs: $(VENV)/.dev ## write the tables of docs/ from the code, build the site in build/site; fails on a broken link
	$(VENV)/bin/python -m docs.generate
	$(VENV)/bin/python -m docs.build

site: docs ## build it with the playground that needs no server, for any static host (needs npm)
	$(VENV)/bin/python -m browser.build

dev: $(VENV)/.dev ## install all that tests and experiments import

experiments-quick: $(VENV)/.dev ## run the quick form of every experiment whose data is there, then write one report
	@test -e "$${CAPSNET_DATA:-data}/toys" || $(VENV)/bin/capsnet-train make toys
	$(VENV)/bin/capsnet-train experiment all --quick
	$(VENV)/bin/capsnet-train report

soak: $(VENV)/.serve ## saturate a service for ten minutes; fails if memory, threads or open files grow (needs wrk)
	$(VENV)/bin/python -m benchmarks.resilience.soak

docker-test: ## build the images, run them with compose and check their answers
	@PYTHON='$(PYTHON)' TORCH_INDEX='$(TORCH_INDEX)' docker/test.sh

constraints: $(VENV)/.made ## update constraints.txt to the newest versions that pyproject.toml allows
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $(PYTHON) -m venv "$$scratch" && \
	"$$scratch/bin/python" $(PIP) install $(EXTRA_INDEX) '.[cpu,train,dev]' && \
	sed '/^[^#]/d' constraints.txt > "$$scratch/pins" && \
	"$$scratch/bin/python" $(PIP) freeze --all --exclude pip --exclude capsnet > "$$scratch/freeze" && \
	sed -n 's/^onnxruntime==/onnxruntime-gpu==/p' "$$scratch/freeze" | cat - "$$scratch/freeze" | \
	grep -v -i -E '^(nvidia|cuda|triton==)' | sed 's/+.*//' | LC_ALL=C sort -f >> "$$scratch/pins" && \
	cp "$$scratch/pins" constraints.txt

clean: ## remove .venv and the files of the tools; keeps runs/ and data/
	rm -rf $(VENV) build capsnet.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .grimp_cache .hypothesis .schemathesis .cache
	find capsnet training export service browser docs tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# -- .venv, and a stamp in it for each set that has been installed ------------------------------------------

EXTRA_INDEX = $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)')

# --editable: the packages are used where they lie. Quiet, and still loud about whatever goes wrong.
$(VENV)/.serve: $(VENV)/.made $(PINNED)
	@echo 'Installing the CPU runtime into $(VENV)'
	@$(VENV)/bin/python $(PIP) install --quiet --constraint constraints.txt --editable '.[cpu]'
	@touch $@

# torch in an index of CPU builds is `2.13.0+cpu`, which pip prefers to the registry's `2.13.0`.
$(VENV)/.dev: $(VENV)/.made $(PINNED)
	$(VENV)/bin/python $(PIP) install $(EXTRA_INDEX) --constraint constraints.txt --editable '.[cpu,train,dev]'
	@touch $(VENV)/.serve $@

$(VENV)/.made:
	@command -v '$(PYTHON)' > /dev/null || \
	{ echo 'make: there is no $(PYTHON); install Python 3.11 or later, or name it: make PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 or later is needed: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || \
	{ echo 'make: $(PYTHON) lacks the modules venv and ensurepip; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@
