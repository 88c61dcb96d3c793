# make demo        Quantize the packaged all-MiniLM-L6-v2.
# make test        Run the tests.
# make test-slow   Run the tests that are marked `slow`: servers, browsers, clusters.
# make test-wheel  Install the wheel without extras, and test what has to work there.
# make check       Check formatting, lint and types.
# make docs        Build the documentation site, build/docs/index.html. Warnings are errors.
# make clean       Remove the virtual environment, which the first of these commands sets up.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := '.[datasets,demo,dev,openvino,tensorboard,train]'
# Tests start hundreds of processes, which need half as long with compiled files.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist loadfile \
	--no-loadscope-reorder --max-worker-restart 0

.PHONY: demo test test-slow test-wheel check docs clean

demo: $(STAMP)
	$(BIN)/qdqbert quantize

test: $(STAMP)
	$(PYTEST) -m 'not slow and not wheel'

# A test reads Triton's messages in tritonclient, whose dependencies exclude our versions of protobuf
# and ml_dtypes. Others compare with gliclass, gliner and gliner2, whose dependencies exclude our
# version of transformers, or are not needed. pytest exits with 5 if no test is marked.
test-slow: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs,llama-index,ray,ray-serve]'
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps gliclass gliner gliner2 \
		sentencepiece tritonclient
	$(BIN)/pip install --quiet --constraint constraints.txt bertopic chromadb cohere haystack-ai keybert \
		langchain-classic 'moto[server]' mteb polars s3fs schemathesis
	$(PYTEST) -m slow || test $$? -eq 5

test-wheel: $(STAMP)
	$(BIN)/python -m pytest -m wheel tests/test_wheel.py

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs,llama-index]'
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet docs build/docs

# uv installs in a fifth of pip's time, but does not read pip's settings, such as the place of PyTorch's
# wheels or of an index. Python compiles what is imported, a quarter of the files.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch uv
	$(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python --constraint constraints.txt \
		--editable $(EXTRAS) \
		|| $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable $(EXTRAS)
	touch $(STAMP)

clean:
	rm -rf $(VENV)
