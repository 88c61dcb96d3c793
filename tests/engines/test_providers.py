from __future__ import annotations

import sys
from types import SimpleNamespace

import onnxruntime
import pytest

from qdqbert.common.errors import MissingExtraError, UserInputError
from qdqbert.engines import providers
from qdqbert.engines.providers import (
    PROVIDERS,
    check_provider,
    check_started,
    float_type,
    plugin_devices,
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


@pytest.fixture
def plugin(monkeypatch):
    """A plugin of ONNX Runtime without its library, whose devices a test chooses."""
    devices: list[SimpleNamespace] = []
    calls: list[tuple[str, str]] = []
    module = SimpleNamespace(get_library_path=lambda: "/no/such/library.so")
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_nv_tensorrt_rtx", module)
    monkeypatch.setattr(providers, "is_installed", lambda name: True)
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: devices)
    return SimpleNamespace(devices=devices, calls=calls)


def test_a_plugin_that_is_not_installed_is_named(monkeypatch) -> None:
    monkeypatch.setattr(providers, "is_installed", lambda name: False)
    with pytest.raises(MissingExtraError, match="pip install onnxruntime-ep-nv-tensorrt-rtx-cu13"):
        check_provider("tensorrt-rtx")


def test_a_plugin_whose_library_cannot_be_loaded_says_why(plugin) -> None:
    with pytest.raises(UserInputError, match=r"`provider='tensorrt-rtx'` does not start: .*lib"):
        check_provider("tensorrt-rtx")


def test_a_plugin_is_registered_once_and_needs_a_device(plugin, monkeypatch) -> None:
    card = SimpleNamespace(ep_name="NvTensorRTRTXExecutionProvider")

    def register(name: str, path: str) -> None:
        plugin.calls.append((name, path))
        if len(plugin.calls) > 1:
            plugin.devices.append(card)

    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", register)
    with pytest.raises(UserInputError, match="it finds no GPU"):
        check_provider("tensorrt-rtx")
    assert plugin_devices("tensorrt-rtx") == [card]
    assert plugin_devices("tensorrt-rtx") == [card]
    assert plugin.calls == [("NvTensorRTRTXExecutionProvider", "/no/such/library.so")] * 2


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
        "tensorrt-rtx": "float32",
        "openvino": "float32",
    }


def test_a_silent_fallback_is_an_error() -> None:
    check_started("cuda", ["CUDAExecutionProvider", "CPUExecutionProvider"])
    with pytest.raises(UserInputError, match="fell back to CPUExecutionProvider"):
        check_started("cuda", ["CPUExecutionProvider"])
