# Two commands do everything, set-up included: `make test` and `make reproduce`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: test test-fast check lint reproduce bench docs explorer format clean python-is-ready

# one thread for matrix products: those of the tests are small, and the workers fill the cores
test test-fast: export OPENBLAS_NUM_THREADS ?= 1
# glibc keeps freed memory: returning it to the system and asking for it again takes long
test test-fast: export MALLOC_TRIM_THRESHOLD_ ?= 1000000000
test test-fast: export MALLOC_MMAP_THRESHOLD_ ?= 1000000000

# the type checker is one of the tests, so that others run beside it
test: $(INSTALLED) lint
	$(BIN)/python -m pytest -n logical --maxprocesses 4

test-fast: $(INSTALLED)
	$(BIN)/python -m pytest -n logical --maxprocesses 4 -m "not slow"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check: lint
	$(BIN)/pyright --pythonpath $(BIN)/python

reproduce: $(INSTALLED)
	$(BIN)/largeprompt reproduce --resume --workers 2

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[peers]'
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.page

# the site, which can be opened without a server: out/site/index.html
docs: export NO_MKDOCS_2_WARNING ?= 1
docs: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m mkdocs build --strict
	@echo "site: out/site/index.html"

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache

# Rebuilt only when what is installed could have changed.
$(INSTALLED): pyproject.toml constraints.txt setup.py $(wildcard src/largeprompt/_native/*.cc src/largeprompt/_native/*.h) | python-is-ready
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@$(BIN)/python -c 'from largeprompt import _native; _native.available() or \
	  print("note: the kernels for the CPU could not be compiled (is there a C++ compiler?); XLA does their work, slower.")'
	touch $@

python-is-ready:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: '$(PYTHON)' was not found; largeprompt needs Python 3.11 or newer." >&2; \
	  echo "fix:   install it, or name it: make PYTHON=/path/to/python3.12 test" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $$($(PYTHON) --version) is too old; largeprompt needs Python 3.11 or newer." >&2; \
	  echo "fix:   install a newer one, or name it: make PYTHON=/path/to/python3.12 test" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot create virtual environments (module venv or ensurepip is missing)." >&2; \
	  echo "fix:   install it (on Debian and Ubuntu the package python3-venv)." >&2; exit 1; }

# one page with sliders: out/explorer.html; it needs nothing but Python
explorer: python-is-ready
	$(PYTHON) docs/builder/explorer.py
