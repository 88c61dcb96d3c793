# make demo    sets up everything, then quantizes the packaged all-MiniLM-L6-v2
# make test    sets up everything, then runs the tests
# make check   formatting, lint and types
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check clean

demo: $(STAMP)
	$(BIN)/qdqbert quantize

test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[datasets,demo,dev,openvino,tensorboard,train]'
	touch $(STAMP)

clean:
	rm -rf $(VENV)
