# `make demo` and `make test` need nothing but Python 3.11+ and this file.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
DIST_READY := $(VENV)/.dist-ready
# Compiled bytecode is kept whatever the environment says: tests start many processes, and pytest rewrites every file.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: kernels demo test sweep soak versions dist package browser bench peers zoo docs lint clean

demo: $(READY)
	$(BIN)/python examples/tour.py

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=10 --ignore=tests/sweep -m "not sweep and not browser"

# Every operator that torch can differentiate, and laws on more examples; half an hour on two cores. A run that was stopped
# is continued, AGAIN=1 begins anew. DASK=tcp://host:8786 runs them on a cluster whose workers see this folder, DASK=4
# four at a time here.
sweep: $(READY)
	$(BIN)/python tools/sweep.py $(DASK) $(if $(AGAIN),--again)

# 20,000 checks and 200,000 transform calls in one process: nothing may grow. It draws docs/images/soak.svg; PART=0.01
# runs a hundredth of it and draws nothing.
soak: $(READY)
	$(BIN)/python tools/soak.py $(PART)

# All tests with several releases of torch, in environments that are deleted again; it says first what that takes.
# VERSIONS="2.9.1 2.15.0" chooses; without it, the oldest, the pinned and the newest. WORKERS=1 takes one process, and
# WRITE=1 puts the table into docs/versions.md. A run that was stopped is continued with the next release.
versions:
	WORKERS=$(or $(WORKERS),auto) $(PYTHON) tools/versions.py $(if $(WRITE),--write) $(VERSIONS)

# What is published: the wheel and the source distribution, and whether an index would take them.
dist: $(DIST_READY)
	rm -rf dist build
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*

# The same, installed in environments of their own and used there; a minute or two.
package: dist
	$(BIN)/python -m pytest -m sweep tests/package

# The page of a report in a real browser, which has to be there already.
CHROMIUM ?= $(firstword $(wildcard /usr/bin/chromium /usr/bin/chromium-browser /usr/bin/google-chrome))
browser: $(READY)
	@test -x "$(CHROMIUM)" || { echo "make browser needs Chromium. Install it, or say where it is: make browser CHROMIUM=/path/to/chromium" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[browser]"
	CHROMIUM="$(CHROMIUM)" $(BIN)/python -m pytest -m browser

# Kernels in Triton, on the CPU by its interpreter, and an operator in C++, which takes a compiler.
kernels: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[kernels]"
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/kernels/test_triton_kernels.py tests/kernels/test_cpp_kernels.py

# Everything beside its peers, as ratios: tables, figures and benchmarks/results/<date>.json (benchmarks/README.md).
# ONLY="gradcheck growth" chooses, QUICK=1 takes under five minutes, AGAIN=1 measures anew, COMPARE=<file> shows what
# moved, MEMORY=20 and SECONDS=120 let a process of the area growth take 20 GB and two minutes. A run that was stopped
# is continued.
bench: $(READY)
	BENCH_MEMORY=$(MEMORY) BENCH_SECONDS=$(SECONDS) $(BIN)/python -m benchmarks $(ONLY) $(if $(QUICK),--quick) $(if $(AGAIN),--again) $(if $(COMPARE),--compare $(COMPARE))

# The peers that an area names as not installed: JAX, asdex, sparsejac, CasADi.
peers: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[bench-sparse]"

# Gradient checks of functions from other packages, against torch's.
zoo: $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[zoo]"
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps qpth # it asks for numpy < 2
	$(MAKE) bench ONLY=zoo

# The pages as HTML; a warning is an error.
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build
	@echo "docs/_build/index.html"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torch and the tools into $(VENV); the first time this downloads some 300 MB"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(READY)

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $(DOCS_READY)

$(DIST_READY): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dist]"
	touch $(DIST_READY)

clean:
	rm -rf $(VENV) build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .sweep .versions
