"""Optional dependencies, and the commands that install them."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping

from qdqbert.common.errors import MissingExtraError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extra:
    """An extra of this package.

    Attributes:
        modules: What it installs that the package imports, the most important one first.
        purpose: What it is for, in words.
    """

    modules: tuple[str, ...]
    purpose: str


_ONNX = ("onnxruntime", "onnx", "onnx_ir")
_QUANTIZE = ("torch", "onnxscript", "safetensors", "transformers", *_ONNX)
_SERVE = ("uvicorn", "httptools", "prometheus_client", "pydantic")

EXTRAS: Mapping[str, Extra] = {
    "onnxruntime": Extra(modules=_ONNX, purpose="the engine ONNX Runtime, and graphs of it"),
    "quantize": Extra(modules=_QUANTIZE, purpose="`quantize`, `evaluate` and `analyze`"),
    "train": Extra(modules=("accelerate", *_QUANTIZE), purpose="`train`, and plots"),
    "tensorboard": Extra(modules=("tensorboard",), purpose="logs of `train` for TensorBoard"),
    "datasets": Extra(modules=("datasets",), purpose="data sets of the hub: `hub:NAME@SPLIT`"),
    "parquet": Extra(modules=("pyarrow",), purpose="`run` on .parquet files"),
    "ray": Extra(modules=("ray", "pyarrow"), purpose="`run` and `quantize` on a Ray cluster"),
    "cuda": Extra(modules=("torch", "triton"), purpose="kernels for NVIDIA GPUs: `device='cuda'`"),
    "templates": Extra(modules=("jinja2",), purpose="rerankers that are language models"),
    "serve": Extra(modules=_SERVE, purpose="`serve`"),
    "ray-serve": Extra(modules=("ray", "aiohttp", *_SERVE[2:]), purpose="servers on a cluster"),
    "export": Extra(
        modules=("openvino_genai", "openvino", "openvino_tokenizers", "transformers"),
        purpose="`export` to OpenVINO's format",
    ),
    "langchain": Extra(modules=("langchain_core",), purpose="models for LangChain"),
    "llama-index": Extra(modules=("llama_index.core",), purpose="models for LlamaIndex"),
    "sentence-transformers": Extra(
        modules=("sentence_transformers",), purpose="models for sentence-transformers"
    ),
}


def is_installed(module: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        # A package around it is missing.
        return False


def require(what: str, extra: str, *modules: str, argument: str | None = None) -> None:
    """Refuse a feature that needs an extra if a part of the extra is missing.

    Args:
        what: Name of the feature, for the message.
        extra: Name of the extra.
        modules: Modules that the feature needs; all of the extra by default.
        argument: The argument that asks for the feature, if there is one.

    Raises:
        MissingExtraError: A module is not installed.
    """
    missing = [each for each in modules or EXTRAS[extra].modules if not is_installed(each)]
    if missing:
        raise MissingExtraError(
            f"{what} needs packages that are not installed: {', '.join(missing)}. Install them "
            f"with: pip install 'qdqbert[{extra}]'",
            argument=argument,
        )
