# Each target sets up .venv by itself when it has to; the second time that takes no time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup run test lint docs docs-serve bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: $(READY)
	$(BIN)/nestfl run

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/homes.py

test: lint
	$(BIN)/pytest -n auto -m "not processes"
	# A test that failed beside other processes (ports, Ray heads) is run once more, by itself.
	$(BIN)/pytest -n 2 --dist loadfile -m processes \
		|| $(BIN)/pytest -n 0 -m processes --last-failed --last-failed-no-failures none

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'site/index.html is the way in'

docs-serve: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

bench: $(READY)
	$(BIN)/python -m benchmarks.aggregation
	$(BIN)/python -m benchmarks.defences
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.client_loop
	$(BIN)/python -m benchmarks.round_overhead
	$(BIN)/python -m benchmarks.server_memory
	$(BIN)/python -m benchmarks.many_nodes
	$(BIN)/python -m benchmarks.adaptive_inference
	$(BIN)/python -m benchmarks.comparison
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.startup

clean:
	rm -rf $(VENV) build site *.egg-info
