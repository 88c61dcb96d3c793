"""ONNX Runtime's execution providers: their names, options and packages."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from qdqbert.common.choices import PROVIDER_NAMES
from qdqbert.common.errors import MissingExtraError, UserInputError, one_line
from qdqbert.common.extras import is_installed

PROVIDERS: Mapping[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
_PACKAGES: Mapping[str, str] = {
    "cpu": "onnxruntime",
    "cuda": "onnxruntime-gpu",
    "tensorrt": "onnxruntime-gpu, and TensorRT",
    "tensorrt-rtx": "onnxruntime-ep-nv-tensorrt-rtx-cu13",
    "openvino": "onnxruntime-openvino",
}
# Providers that are packages beside onnxruntime, which loads their libraries: their modules.
_PLUGINS: Mapping[str, str] = {"tensorrt-rtx": "onnxruntime_ep_nv_tensorrt_rtx"}
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    # Without these, TensorRT below 10 reads a graph with Q/DQ pairs as float32.
    "tensorrt": {"trt_fp16_enable": "1", "trt_int8_enable": "1"},
    "openvino": {"device_type": "CPU"},
}
# The provider that runs the nodes that another one cannot: the next fastest on the same device.
_FALLBACKS: Mapping[str, tuple[str, ...]] = {"tensorrt": ("cuda",)}


def check_provider(name: str) -> None:
    """Refuse a provider that is unknown or not in the installed onnxruntime.

    Raises:
        UserInputError: The name is unknown, or a plugin does not start.
        MissingExtraError: The installed package does not have the provider. The message names the
            package that does.
    """
    import onnxruntime

    if name not in PROVIDERS:
        known = ", ".join(PROVIDER_NAMES)
        raise UserInputError(
            f"`provider={name!r}` is unknown. Known: {known}.", argument="provider"
        )
    if name in _PLUGINS:
        plugin_devices(name)
        return
    available = onnxruntime.get_available_providers()
    if PROVIDERS[name] not in available:
        raise MissingExtraError(
            f"`provider={name!r}` needs another package: the installed onnxruntime "
            f"{onnxruntime.__version__} has only {', '.join(available)}. Uninstall it, and install "
            f"{_PACKAGES[name]}.",
            argument="provider",
        )


def is_plugin(name: str) -> bool:
    """Return whether a provider is a package beside onnxruntime."""
    return name in _PLUGINS


def plugin_devices(name: str) -> list[Any]:
    """Return the devices of a plugin, whose library is loaded once.

    Source: ONNX Runtime's API for plugin libraries, from 1.24 on.

    Raises:
        MissingExtraError: The plugin is not installed.
        UserInputError: Its library cannot be loaded, or it finds no device.
    """
    import onnxruntime

    def found() -> list[Any]:
        return [d for d in onnxruntime.get_ep_devices() if d.ep_name == PROVIDERS[name]]

    if not is_installed(_PLUGINS[name]):
        raise MissingExtraError(
            f"`provider={name!r}` needs a package that is not installed. Install it with: pip "
            f"install {_PACKAGES[name]}",
            argument="provider",
        )
    if devices := found():
        return devices
    module = importlib.import_module(_PLUGINS[name])
    reason = "it finds no GPU that it runs on"
    try:
        onnxruntime.register_execution_provider_library(
            PROVIDERS[name], str(module.get_library_path())
        )
        devices = found()
    # The classes of its errors have no common parent, and older versions lack the function.
    except Exception as error:
        reason = one_line(error)
    if not devices:
        raise UserInputError(f"`provider={name!r}` does not start: {reason}.", argument="provider")
    return devices


def provider_list(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the providers of a session with their options, in the order of preference."""
    chain = dict.fromkeys((name, *_FALLBACKS.get(name, ()), "cpu"))
    return [(PROVIDERS[each], dict(_OPTIONS.get(each, {}))) for each in chain]


def float_type(name: str) -> str:
    """Return the float type that a provider computes in between int8 operators."""
    return "float16" if _OPTIONS.get(name, {}).get("trt_fp16_enable") == "1" else "float32"


def check_started(name: str, started: list[str]) -> None:
    """Refuse a session that fell back to another provider, which onnxruntime only logs.

    Args:
        name: The provider that was asked for.
        started: ONNX Runtime's names of the session's providers, in the order of preference.

    Raises:
        UserInputError: The first one is another provider.
    """
    if started[0] != PROVIDERS[name]:
        raise UserInputError(
            f"`provider={name!r}` is installed but did not start; onnxruntime fell back to "
            f"{started[0]}. Check the GPU driver, and the libraries that the provider needs.",
            argument="provider",
        )
