"""Kernels for GPUs are tested where Triton is installed: on Linux."""

import pytest

pytest.importorskip("triton")
