# The Executable Transformer. `make` alone lists the targets.
SHELL  := bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PORT   ?= 8000
URL    ?=
OUT    ?= build/gpu
COMMIT ?=
STAGES ?=
export TORCH ?= cpu
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:            ## this list
	@grep -E '^[a-z-]+: .*##' Makefile | sed -E 's/^([a-z-]+):.*## */\1\t/' | awk -F'\t' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) tools/version.py
	$(PYTHON) -m venv $(VENV) || { rm -f $(BIN)/python*; exit 1; }

python: $(BIN)/python
	@$(BIN)/python tools/version.py

$(VENV)/.book: pyproject.toml requirements.txt tools/install.py | python
	$(BIN)/python tools/install.py book
	@touch $@

$(VENV)/.all: requirements.txt tools/install.py | python
	$(BIN)/python tools/install.py all
	@touch $@ $(VENV)/.book

setup: $(VENV)/.all              ## the whole environment, at the locked versions (TORCH=default: PyTorch with CUDA)

build-book: $(VENV)/.book
	$(BIN)/jupyter-book build . -W -n --keep-going
	$(BIN)/python tools/built.py

book: build-book       ## build the book strictly from stored outputs, serve it, print the address
	$(BIN)/python tools/serve.py _build/html $(PORT)

test: setup            ## prove the book: what CI runs
	$(BIN)/python tools/prove.py $(STAGES)

check: setup           ## the quick part of the proof, of what you changed
	$(BIN)/python tools/prove.py --quick

read: setup            ## read the chapters in JupyterLab and try things out, in clean copies
	$(BIN)/python tools/lab.py --read

lab: setup             ## edit the chapters' sources in JupyterLab
	$(BIN)/python tools/lab.py

export: setup          ## write tfmlib from the chapters
	$(BIN)/python tools/export.py

execute: setup         ## run chapters and store their outputs (NB="chapters/04_attention.ipynb" for some)
	$(BIN)/python tools/execute.py $(NB)

colab: setup           ## write the Colab copies to build/colab
	$(BIN)/python tools/colab.py

pdf: setup build-book  ## the whole book as PDF, for A4 and letter paper, in build/paper (needs Chromium)
	$(BIN)/python tools/pdf.py

epub: build-book       ## the whole book for e-readers, in build/paper
	$(BIN)/python tools/epub.py

exercises: setup       ## write the exercises without solutions to build/exercises
	$(BIN)/python tools/exercises.py

bench: setup           ## measure against peers on this machine; kept runs (bench/runs) are aggregated, not trained again
	PYTHONPATH=. $(BIN)/python -m bench

bench-gpu:             ## measure on a GPU into OUT, 570 seconds a call (PYTHON needs torch, triton and numpy)
	PYTHONPATH=. $(PYTHON) -m bench --gpu --out $(OUT) $(if $(COMMIT),--commit $(COMMIT))

address: $(VENV)/.book # make address URL=https://github.com/NAME/REPOSITORY ## stamp the repository's address
	$(BIN)/python tools/address.py "$(URL)"

lock: $(VENV)/.all     ## resolve requirements.txt anew from pyproject.toml
	$(BIN)/pip-compile --quiet -U -c requirements.hold --all-extras --strip-extras --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-emit-options --no-header --no-annotate -o requirements.txt pyproject.toml
	sed -i -E "s/\+cpu$$//; s/^(triton==.*)/\1; platform_system == 'Linux'/; /^#/d; /^$$/d" requirements.txt

clean:                 ## remove what was built
	rm -rf _build build dist *.egg-info

# The shell stops at the first failure, in a pipe too; make 3.81 (macOS) ignores that, so recipes have no pipe that could hide one.
.DELETE_ON_ERROR:
.PHONY: help python setup build-book book test check read lab export execute colab pdf epub exercises bench bench-gpu address lock clean
.DEFAULT_GOAL := help
