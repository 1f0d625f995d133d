# Two commands matter: `make demo` and `make test`. Each makes .venv and installs what it needs.
#
#   PYTHON       the interpreter for .venv (3.11 or newer; default: python3.11, else python3)
#   WHEEL_INDEX  an additional index of wheels, for example one with CPU builds of torch
#   TESTS        what to test (default: everything)
#   FLAGS        what else pytest is told
#   MARKS        which tests `make test` runs (default: all but walks and texts of the documentation)
#   PIP_CONSTRAINT  versions of dependencies (default: .ci/constraints.txt)
#   WORKERS      how many processes test at a time (default: 3, for two cores: tests on Ray wait half of their time)

PYTHON ?= $(shell command -v python3.11 || command -v python3)
WHEEL_INDEX ?=
TESTS ?=
FLAGS ?=
MARKS ?= not walk and not docs
WORKERS ?= 3
# the versions that are tested, of what pyproject.toml leaves open; PIP_CONSTRAINT= takes the newest
export PIP_CONSTRAINT ?= $(CURDIR)/.ci/constraints.txt
# another set of rows for `make replay` each time, unless a seed is given
DRAWN := $(if $(filter-out all,$(DRAW_SEED)),--draw-seed $(DRAW_SEED))
# only the files that have such tests: to import all the others takes half a minute
marked = $(shell grep -rlE 'mark\.$(1)\b' --include='test_*.py' tests)

# where it is set, each of the thousands of processes that tests start compiles the same modules again
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# pip compiles what it installs on one core, and the tests of all libraries too: half a minute more
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $(if $(WHEEL_INDEX),--extra-index-url $(WHEEL_INDEX))

# `make check` is the inner loop: style, types, and the tests without Ray, browsers and long runs. `make walks` does what
# a person does: the documentation's commands, every script, installs in fresh environments, clusters of several hosts.
# Of long tests and walks with many cases `make test` and `make walks` run a few, other ones for each commit, and all that
# the changes touch; DRAW_SEED=7 repeats a draw (tests/drawing.py). `make deep` runs every test there is.
# `make docs-check` holds the texts, tables and counts of pages against code and results.
# `make replay` makes three random rows of the results again and compares them with the record, and computes every
# epsilon and mu of theirs by another accountant.
.PHONY: demo test deep fuzz walks replay check lint docs docs-check clean

demo: $(VENV)/.installed
	@$(BIN)/python scenarios/demo.py

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup -m "$(MARKS)" $(FLAGS) $(TESTS)

deep: $(VENV)/.installed-dev
	DRAW_SEED=all $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup $(FLAGS) $(TESTS)

# `make fuzz` tries twenty times as much as a test run; DRAW_SEED=7 picks other folders
fuzz: $(VENV)/.installed-dev
	FEDACTORS_FUZZ=$${FEDACTORS_FUZZ:-20} $(BIN)/python -m pytest -q --numprocesses logical tests/fuzz

walks: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup -m walk $(FLAGS) $(or $(TESTS),$(call marked,walk))

replay: $(VENV)/.installed-dev
	$(BIN)/python -m scenarios.replay --rows 3 --within 20 $(DRAWN)
	$(BIN)/python -m scenarios.accounts --again 3 $(DRAWN)

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses logical --dist loadgroup -m "not ray and not slow and not docs" -q $(TESTS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	$(BIN)/mkdocs build --strict --quiet

docs-check: $(VENV)/.installed-dev
	$(BIN)/python -m pytest --numprocesses logical -m docs -q $(or $(TESTS),$(call marked,docs))

clean:
	rm -rf $(VENV) site build *.egg-info

$(VENV)/.installed: pyproject.toml
	$(call install,.)

$(VENV)/.installed-dev: pyproject.toml
	$(call install,'.[dev]')
	@touch $(VENV)/.installed

# pip's own words fill screens, and its silence lasts minutes; who prints the dots ends with the shell that installs
define install
@$(PYTHON) -c 'import sys; sys.exit("fedactors needs Python 3.11 or newer, " + sys.executable + " is older; set PYTHON=" if sys.version_info < (3, 11) else 0)'
@echo 'installing into $(VENV), once: minutes, and 5 GB (2 GB with a CPU build of torch: WHEEL_INDEX=...); a dot is 3 seconds'
@$(PYTHON) -m venv $(VENV)
@(while sleep 3 && kill -0 $$$$ 2> /dev/null; do printf .; done) & \
	$(PIP) --editable $(1) && { $(COMPILE); }; code=$$?; kill $$!; echo; exit $$code
@touch $@
endef
