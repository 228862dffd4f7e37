# The hands of the project. `make run` and `make test` do everything on a fresh machine with Python 3.11 or newer.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RECIPE ?= recipes/digits_mlp.yaml

# twice the cores of a small machine: much of a test is waiting. A file's tests stay together, the longest come first
WORKERS := -n 4 --dist loadfile --no-loadscope-reorder

# ranks of a test share the cores of the machine
quick test test-long matrix accept bench parity planner faults some-faults kills silent: export OMP_NUM_THREADS ?= 1
# tests start processes: each would compile the package anew where a machine forbids to keep bytecode
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run quick test test-slow test-newest test-long matrix check format generate docs accept bench parity planner faults some-faults kills silent test-gpu bench-gpu site pictures site-serve clean

run: $(VENV)/.installed
	$(BIN)/dtrain run $(RECIPE)

test: $(VENV)/.installed-dev
	$(BIN)/pytest $(WORKERS) -m "not long and not matrix and not gpu and not slow"

# what .ci/run runs in addition to `test`: slow tests, of whose subject `test` has a quicker one
test-slow: $(VENV)/.installed-dev
	$(BIN)/pytest $(WORKERS) -m "slow and not long and not gpu"

# a minute or less: the quick tests of one package, and those of the repository's rules
ROOM ?= recipe
quick: $(VENV)/.installed-dev
	$(BIN)/python -m tests.quick $(ROOM)

# `test` with the newest of every package that the registry has, torch above all, in an environment of its own. Where the
# registry has no CPU build of that torch, its CUDA build comes with 7 GB of packages; it runs without a GPU. NEWEST names
# another folder for them, PIP_OPTIONS where CPU builds are, TESTS a part of the tests.
NEWEST ?= .venv-newest
test-newest: export OMP_NUM_THREADS ?= 1
test-newest:
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		$(PIP_OPTIONS) --editable '.[dev]'
	$(NEWEST)/bin/python tests/cpu_torchvision.py
	$(NEWEST)/bin/python -c "import torch; print('torch', torch.__version__)"
	$(NEWEST)/bin/python -m pytest $(WORKERS) -m "not long and not matrix and not gpu" $(TESTS)

test-long: $(VENV)/.installed-dev
	$(BIN)/pytest $(WORKERS) -m "long and not gpu" --timeout 1200

# a checkpoint of every layout goes on on every other: what test-long takes a part of
matrix: $(VENV)/.installed-dev
	$(BIN)/pytest $(WORKERS) -m matrix --timeout 1200

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.generate --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# schemas/, docs/checks.md and docs/components.md are made from the code
generate docs: $(VENV)/.installed-dev
	$(BIN)/python -m tests.generate

# golden files: plans of the shipped recipes, messages of tests/cases
accept: $(VENV)/.installed-dev
	ACCEPT=1 $(BIN)/pytest -n 2 -m "not long and not matrix and not gpu" tests/test_recipes.py tests/test_cases.py

# on one GPU; without one, a line says so. DTRAIN_TEST_DEVICE=cpu runs the same tests on the CPU
test-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m tests.gpu

# on one GPU; without one, a line says so
bench-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.gpu

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.lint
	$(BIN)/python -m benchmarks.plans
	$(BIN)/python -m benchmarks.saves
	$(BIN)/python -m benchmarks.pictures
	$(BIN)/python -m benchmarks.texts
	$(BIN)/python -m benchmarks.tensor
	$(BIN)/python -m benchmarks.tuning

# docs/planner.md and planner-cells.md: predicted memory compared with that of real ranks
planner: $(VENV)/.installed-dev
	$(BIN)/python -m tests.planner
	$(BIN)/python -m tests.planner.times
	$(BIN)/python -m tests.planner.cpu_times

parity: $(VENV)/.installed-dev
	$(BIN)/python -m tests.parity

# docs/silent-mistakes.md: trainings that end well and have learned the wrong thing, and what is found of each
silent: $(VENV)/.installed-dev
	$(BIN)/python -m tests.silent

# docs/faults.md: what a run on two nodes says when ranks, agents, nodes and cables fail; as root, on network namespaces
faults: $(VENV)/.installed-dev
	$(BIN)/python -m tests.faults

# what .ci/run tries of `faults` and `kills`
some-faults: $(VENV)/.installed-dev
	$(BIN)/pytest -n 0 -m faults tests/run/test_faults.py

# ranks, agents and nodes of one run are killed 200 times, and it ends with the same parameters; a rank of another one every
# ten seconds, 100 times, and it ends
kills: $(VENV)/.installed-dev
	DTRAIN_KILLS=200 $(BIN)/pytest -n 0 tests/run/test_faults.py -k "killed_again and not 30"
	DTRAIN_KILLS=100 $(BIN)/pytest -n 0 tests/run/test_faults.py -k every_ten

# Every install is under constraints.txt, so that none moves torch. `make run` installs what a user needs; tests need more.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python tests/cpu_torchvision.py
	touch $@

# the documentation, as pages in build/site
site: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# docs/images: screenshots of TensorBoard and the terminal, by Chromium and tmux
pictures: $(VENV)/.installed-dev
	$(BIN)/python -m tests.screenshots

site-serve: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

clean:
	rm -rf $(VENV) $(NEWEST) runs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
