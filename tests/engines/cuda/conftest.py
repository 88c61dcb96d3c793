"""Kernels of GPUs in Triton's interpreter, which reads this variable when they are imported."""

import os

import pytest

os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")
