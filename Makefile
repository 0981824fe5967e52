# Two commands do everything, set-up included: `make test` and `make reproduce`.
# Each command installs what it uses into .venv, an extra of pyproject.toml, when that has changed.
# `make test` installs the pinned PyTorch, because it tests it. On Linux that may be the large build for CUDA: for the build for
# CPUs, set PIP_EXTRA_INDEX_URL to the index of CPU builds that PyTorch's installation page names.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-
WORKERS ?= -n logical --maxprocesses 4 --dist loadfile

.PHONY: test test-fast check check-types reproduce bench docs explorer format clean python-is-ready
.SECONDARY:

test: check
	$(BIN)/python -m pytest $(WORKERS)

test-fast: $(STAMP)test
	$(BIN)/python -m pytest $(WORKERS) -m "not slow"

check: $(STAMP)test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# the tests with every annotation checked at run time, a fifth slower
check-types: $(STAMP)test
	LARGEPROMPT_CHECK_TYPES=1 $(BIN)/python -m pytest $(WORKERS)

reproduce: $(STAMP)report
	$(BIN)/python -m reproduction --resume --workers 2
	@echo "kept for the next run: results in out/reproduce, compiled programs in the cache folder of the user"

bench: $(STAMP)test $(STAMP)peers
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.page

# the site, which can be opened without a server: out/site/index.html
docs: export NO_MKDOCS_2_WARNING ?= 1
docs: $(STAMP)docs
	$(BIN)/python -m mkdocs build --strict
	@echo "site: out/site/index.html"

# one page with sliders: out/explorer.html; it needs nothing but Python
explorer: python-is-ready
	$(PYTHON) docs/builder/explorer.py

format: $(STAMP)test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache

$(STAMP)%: pyproject.toml constraints.txt setup.py $(wildcard src/largeprompt/_native/*.cc src/largeprompt/_native/*.h) | python-is-ready
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@$(BIN)/python -c 'from largeprompt import _native; _native.available() or \
	  print("note: the kernels for the CPU could not be compiled (is there a C++ compiler?); XLA does their work, slower.")'
	@touch $@

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
