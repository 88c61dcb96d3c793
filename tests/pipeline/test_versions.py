"""Versions of installed packages."""

from __future__ import annotations

import importlib.metadata
import platform

import onnx_ir
import torch

from qdqbert.pipeline.versions import version_of, versions


def test_versions_are_those_of_the_packages_by_their_names() -> None:
    found = versions()
    assert found["python"] == platform.python_version()
    # torch's build for CUDA adds "+cu130" to its own.
    assert torch.__version__.startswith(found["torch"])
    assert found["onnx-ir"] == onnx_ir.__version__


def test_a_module_can_come_from_a_package_of_another_name() -> None:
    # As onnxruntime can come from onnxruntime-gpu.
    assert version_of("yaml") == importlib.metadata.version("PyYAML")


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert version_of("no_such_module") is None
