"""ONNX Runtime's execution providers: which there are, and how each is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qdqbert.choices import PROVIDER_NAMES
from qdqbert.errors import MissingExtraError, UserInputError

PROVIDERS: Mapping[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
_PACKAGES: Mapping[str, str] = {
    "cuda": "onnxruntime-gpu",
    "tensorrt": "onnxruntime-gpu, and TensorRT beside it",
    "openvino": "onnxruntime-openvino",
}
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    # Without these TensorRT below 10 takes a graph with Q/DQ pairs for a float32 one.
    "tensorrt": {"trt_fp16_enable": "1", "trt_int8_enable": "1"},
    "openvino": {"device_type": "CPU"},
}
_BEHIND: Mapping[str, tuple[str, ...]] = {"tensorrt": ("cuda",)}
# What takes the nodes that a provider does not: the next fastest on the same device.


def check_provider(name: str) -> None:
    """Refuses a provider that is unknown or not in the installed onnxruntime.

    Raises:
        UserInputError: The name is unknown.
        MissingExtraError: The installed package has it not; says which has.
    """
    import onnxruntime

    if name not in PROVIDERS:
        known = ", ".join(PROVIDER_NAMES)
        raise UserInputError(f"`--provider {name}` is unknown. Known: {known}.")
    there = onnxruntime.get_available_providers()
    if PROVIDERS[name] not in there:
        raise MissingExtraError(
            f"`--provider {name}`: the installed onnxruntime {onnxruntime.__version__} has "
            f"{', '.join(there)} only. Install {_PACKAGES[name]} in its place."
        )


def provider_list(name: str) -> list[tuple[str, dict[str, Any]]]:
    """What a session is given: the provider with its options, then what runs the rest."""
    chain = dict.fromkeys((name, *_BEHIND.get(name, ()), "cpu"))
    return [(PROVIDERS[each], dict(_OPTIONS.get(each, {}))) for each in chain]


def check_taken(name: str, taken: list[str]) -> None:
    """Refuses a session that fell back to another provider, which onnxruntime only logs.

    Args:
        name: What was asked for.
        taken: What the session says that it has.

    Raises:
        UserInputError: It has another one first.
    """
    if taken[0] != PROVIDERS[name]:
        raise UserInputError(
            f"`--provider {name}` is installed and could not be started; onnxruntime fell back to "
            f"{taken[0]}. Check the driver and the libraries that it needs."
        )
