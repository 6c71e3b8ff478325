# `make demo` and `make test` set up everything they need in .venv inside this checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DATA ?=

export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test lint bench tpu clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py $(if $(DATA),--data "$(DATA)")

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile
	$(BIN)/ruff check tfdp tests benchmarks examples

lint: $(STAMP)
	$(BIN)/ruff check --fix tfdp tests benchmarks examples
	$(BIN)/ruff format tfdp tests benchmarks examples

bench: $(STAMP)
	$(BIN)/python benchmarks/step_time.py

# libtpu and TensorFlow exclude each other in one process: libtpu has an environment of its own.
tpu: $(STAMP)
	test -x .venv-tpu/bin/python || $(PYTHON) -m venv .venv-tpu
	.venv-tpu/bin/python -m pip install --quiet jax jaxlib libtpu || true
	$(BIN)/python benchmarks/tpu.py --jax .venv-tpu/bin/python

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev,text]"
	touch $@

clean:
	rm -rf $(VENV) .venv-tpu exported build dist *.egg-info .pytest_cache .hypothesis .ruff_cache
