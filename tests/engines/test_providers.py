from __future__ import annotations

import onnxruntime
import pytest

from qdqbert.common.errors import MissingExtraError, UserInputError
from qdqbert.engines.providers import (
    PROVIDERS,
    check_provider,
    check_started,
    float_type,
    provider_list,
)


def test_the_cpu_provider_is_always_available() -> None:
    check_provider("cpu")
    assert provider_list("cpu") == [("CPUExecutionProvider", {})]


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(UserInputError, match=r"`provider='rocm'` is unknown\. Known: cpu, cuda, t"):
        check_provider("rocm")


@pytest.mark.parametrize(
    ("name", "package"),
    [("cuda", "onnxruntime-gpu"), ("tensorrt", "TensorRT"), ("openvino", "onnxruntime-openvino")],
)
def test_a_missing_provider_names_its_package(monkeypatch, name, package) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(MissingExtraError, match=package):
        check_provider(name)


def test_tensorrt_uses_int8_and_leaves_other_nodes_to_cuda() -> None:
    (first, options), *rest = provider_list("tensorrt")
    assert first == "TensorrtExecutionProvider"
    assert options["trt_int8_enable"] == "1"
    assert [name for name, _ in rest] == ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_only_tensorrt_computes_in_float16() -> None:
    found = {name: float_type(name) for name in PROVIDERS}
    assert found == {
        "cpu": "float32",
        "cuda": "float32",
        "tensorrt": "float16",
        "openvino": "float32",
    }


def test_a_silent_fallback_is_an_error() -> None:
    check_started("cuda", ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(UserInputError, match="fell back to CPUExecutionProvider"):
        check_started("cuda", ["CPUExecutionProvider"])
