# make test | test-ui | demo | docs | figures | bench: each sets up what it needs, in .venv (and the browser in build).
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

BROWSER := build/browser/ready

.PHONY: test test-ui lint types unit docs demo figures bench clean

test: lint types docs unit

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "asyncpatch needs Python 3.11 or newer; $(PYTHON) is older. Use: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# one thread per worker: two threads on a busy core are ten times slower
unit: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

# a real browser: Debian's Chromium, driven by playwright-core; CHROMIUM names another one
$(BROWSER):
	@mkdir -p $(@D)
	command -v chromium >/dev/null || [ -n "$$CHROMIUM" ] || { apt-get update -q && apt-get install -y -q --no-install-recommends chromium; }
	npm install --silent --no-audit --no-fund --prefix $(@D) playwright-core@1.65.0
	@touch $@

test-ui: $(READY) $(BROWSER)
	OMP_NUM_THREADS=1 NODE_PATH=$(dir $(BROWSER))node_modules node tests/browser/page.cjs $(BIN)/asyncpatch build/ui

demo: $(READY)
	$(BIN)/python examples/demo.py

figures: $(READY) $(BROWSER)
	$(BIN)/python examples/scenes.py src/asyncpatch/serving/static
	$(BIN)/python examples/demo.py docs/images/demo.png
	$(BIN)/python examples/gallery.py
	$(BIN)/python examples/islands.py docs/images/islands.png
	$(BIN)/python examples/holes.py docs/images/holes.png
	$(BIN)/python examples/schedules.py docs/images/schedules.png
	$(BIN)/python examples/likelihood.py docs/images/likelihood.png
	$(BIN)/python examples/adaptive.py docs/images
	$(BIN)/python benchmarks/coverage.py
	NODE_PATH=$(dir $(BROWSER))node_modules node tests/browser/page.cjs $(BIN)/asyncpatch docs/images 'time can be painted' 'documents'

bench: $(READY)
	$(BIN)/python benchmarks/core.py

clean:
	rm -rf .venv build out .pytest_cache .mypy_cache .ruff_cache .hypothesis
