# `make demo` and `make test` set up everything they need in .venv inside this checkout.
PYTHON ?= python3
VENV := .venv
DOCS ?= .venv-docs
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DATA ?=

test thorough test-lowest evidence bench: export TF_CPP_MIN_LOG_LEVEL ?= 2
# Compiled modules are kept: every worker, and every process that a test starts, imports them.
test thorough test-lowest evidence: export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test thorough test-lowest evidence lint bench beam peers tpu docs notebooks retrieval package wheels clean

demo: $(STAMP)
	@$(BIN)/python examples/demo.py $(if $(DATA),--data "$(DATA)")

# Three workers on two cores: tests wait now and then, for processes that they start.
test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist worksteal
	$(BIN)/ruff check tfdp tests benchmarks examples

# Further tests and cases, most of lines that `make test` runs by faster tests. CI runs both.
thorough: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "thorough and not evidence"

# Slow tests, and further cases of others.
evidence: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m evidence

# What pyproject.toml promises: the lowest versions of everything that it names.
test-lowest:
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet uv
	.venv-lowest/bin/python -m uv pip install --quiet --python .venv-lowest/bin/python \
		--resolution lowest-direct -e . "pytest>=8" "pytest-xdist>=3.5" "hypothesis>=6.100"
	.venv-lowest/bin/python -m pytest -n 3 --dist worksteal -m "not evidence"

lint: $(STAMP)
	$(BIN)/ruff check --fix tfdp tests benchmarks examples
	$(BIN)/ruff format tfdp tests benchmarks examples

# Every benchmark that needs no data set, at a small size; tables in docs/benchmarks.md are of the full one.
bench: $(STAMP)
	$(BIN)/python benchmarks/quick.py

# tfdp beside other libraries, each in an environment of its own: none of them is a dependency.
# PyTorch comes first, from the index of its CPU builds, so that nothing asks for CUDA.
PEERS_PYTHON ?= python3.11
JAX_PYTHON ?= python3.12
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
peers: $(STAMP) .venv-peers-tfp/.installed .venv-peers-opacus/.installed .venv-peers-jax/.installed
	$(BIN)/python benchmarks/peers.py --leave-out vectorized --out benchmarks/results/peers.json
	$(BIN)/python benchmarks/peers.py --only vectorized --out benchmarks/results/peers.json

.venv-peers-tfp/.installed:
	$(PEERS_PYTHON) -m venv .venv-peers-tfp
	.venv-peers-tfp/bin/python -m pip install --quiet "tensorflow==2.15.*" "tensorflow-privacy==0.9.0"
	touch $@

.venv-peers-opacus/.installed:
	$(PEERS_PYTHON) -m venv .venv-peers-opacus
	.venv-peers-opacus/bin/python -m pip install --quiet --extra-index-url $(TORCH_INDEX) "torch==2.13.0"
	.venv-peers-opacus/bin/python -m pip install --quiet "opacus==1.6.0"
	touch $@

.venv-peers-jax/.installed:
	$(JAX_PYTHON) -m venv .venv-peers-jax
	.venv-peers-jax/bin/python -m pip install --quiet jax jaxlib "jax-privacy==2.0.0" "keras==3.15.*"
	touch $@

# Draws by Apache Beam, whose runner pins versions of its own.
beam: .venv-beam/.installed
	.venv-beam/bin/python -m pytest tests/beam tests/data/test_drawn_batches.py -m "evidence or not evidence"
	.venv-beam/bin/python benchmarks/beam_draw.py --records 200000 --out bench/beam_draw.json

.venv-beam/.installed: pyproject.toml
	test -x .venv-beam/bin/python || $(PYTHON) -m venv .venv-beam
	.venv-beam/bin/python -m pip install --quiet -e ".[beam]" "pytest>=8"
	touch $@

# The pages as a site in site/. They are made from the text of the code: TensorFlow is not installed.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict
	@echo "open site/index.html"

$(DOCS)/.installed: pyproject.toml
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python docs/extra.py docs | $(DOCS)/bin/python -m pip install --quiet -r /dev/stdin
	touch $@

# The notebooks in examples/, from the scripts that are written in cells; these are what is edited.
notebooks: $(STAMP)
	for script in $$(grep -l '^# %%' examples/*.py); do \
		$(BIN)/jupytext --quiet --update --to ipynb --set-kernel python3 $$script || exit 1; \
	done

# Retrieval by tensorflow_recommenders, which is of Keras 2: from an export, without tfdp.
retrieval: $(STAMP) .venv-retrieval/.installed
	$(BIN)/python -m pytest tests/serving/test_retrieval.py -m "evidence or not evidence"

.venv-retrieval/.installed:
	$(PYTHON) -m venv .venv-retrieval
	.venv-retrieval/bin/python -m pip install --quiet "tensorflow>=2.20" tf-keras "tensorflow-recommenders>=0.7.7"
	touch $@

# The wheel in a fresh environment of every Python that pyproject.toml promises.
PYTHONS ?= python3.11 python3.12 python3.13
wheels:
	.ci/wheels $(PYTHONS)

# The wheel and the source archive in dist/, checked as a package index would.
package:
	test -x .venv-package/bin/python || $(PYTHON) -m venv .venv-package
	.venv-package/bin/python -m pip install --quiet build twine
	rm -rf dist && .venv-package/bin/python -m build --outdir dist .
	.venv-package/bin/python -m twine check --strict dist/*

# libtpu and TensorFlow exclude each other in one process: libtpu has an environment of its own.
tpu: $(STAMP)
	test -x .venv-tpu/bin/python || $(PYTHON) -m venv .venv-tpu
	.venv-tpu/bin/python -m pip install --quiet jax jaxlib libtpu || true
	$(BIN)/python benchmarks/tpu.py --jax .venv-tpu/bin/python

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev,text]"
# TensorFlow takes 14 s of computing to import without bytecode, 5 s with it; tests import it in
# forty processes. PYTHONDONTWRITEBYTECODE would keep all of them from ever writing it.
	-$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1
	touch $@

clean:
	rm -rf $(VENV) .venv-tpu .venv-lowest .venv-docs .venv-beam .venv-retrieval .venv-package .venv-wheels .venv-peers-* site exported build dist *.egg-info .pytest_cache .hypothesis .ruff_cache
