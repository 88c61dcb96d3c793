"""ONNX Runtime's execution providers: their names, options and packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdqbert.common.choices import PROVIDER_NAMES
from qdqbert.common.errors import MissingExtraError, UserInputError

PROVIDERS: Mapping[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
_PACKAGES: Mapping[str, str] = {
    "cpu": "onnxruntime",
    "cuda": "onnxruntime-gpu",
    "tensorrt": "onnxruntime-gpu, and TensorRT",
    "openvino": "onnxruntime-openvino",
}
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
        UserInputError: The name is unknown.
        MissingExtraError: The installed package does not have the provider. The message names the
            package that does.
    """
    import onnxruntime

    if name not in PROVIDERS:
        known = ", ".join(PROVIDER_NAMES)
        raise UserInputError(
            f"`provider={name!r}` is unknown. Known: {known}.", argument="provider"
        )
    available = onnxruntime.get_available_providers()
    if PROVIDERS[name] not in available:
        raise MissingExtraError(
            f"`provider={name!r}` needs another package: the installed onnxruntime "
            f"{onnxruntime.__version__} has only {', '.join(available)}. Uninstall it, and install "
            f"{_PACKAGES[name]}.",
            argument="provider",
        )


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
