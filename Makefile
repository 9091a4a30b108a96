# Each target makes .venv and installs by itself, so that each works first on a fresh clone.
PYTHON ?= python3
BIN = .venv/bin
BENCH = .venv-bench/bin
PEERS = transformers==5.24.0 matplotlib==3.11.2

demo: .venv/installed ## train on the embedded corpus and show what was learnt (about 3 minutes)
	$(BIN)/transduce demo

test: .venv/installed ## what every change must pass (under 10 minutes)
	$(BIN)/pytest -q -n 2 -m 'not slow'

test-all: .venv/installed ## also the long tests
	$(BIN)/pytest -q -n 2

mutations: .venv/installed ## known faults put into the code: a test has to notice each (10 minutes)
	$(BIN)/python tests/mutations.py

check: .venv/installed ## format, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports

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

clean: ## all that was made, the demo's run included
	rm -rf .venv .venv-bench site dist transduce-demo .pytest_cache .ruff_cache .hypothesis .import_linter_cache

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

.PHONY: demo test test-all mutations check format docs bench-train bench-growth clean
