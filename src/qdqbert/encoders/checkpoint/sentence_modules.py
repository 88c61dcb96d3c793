"""The modules of sentence-transformers between the pooling and the last Normalize."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG
from qdqbert.common.json_files import Fields
from qdqbert.encoders.checkpoint.sentence_files import FindFile, join
from qdqbert.encoders.config import Config
from qdqbert.encoders.model import Activation, Floats, Linear, Norm, Step
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.tensor_files import SAFETENSORS, WEIGHTS
from qdqbert.encoders.weights import Weights

ModuleName = Literal["Dense", "LayerNorm", "Normalize"]
MODULES_AFTER_POOLING: tuple[ModuleName, ...] = get_args(ModuleName)
MODULES_WITHOUT_EFFECT = ("Dropout",)
"""Modules that act in training only."""

# Classes of torch, by the last part of their names; `None` does nothing.
_ACTIVATIONS: Mapping[str, Activation | None] = {
    "GELU": "gelu",
    "Identity": None,
    "ReLU": "relu",
    "SiLU": "silu",
    "Tanh": "tanh",
}
# Functions f of which x is f(x) - f(-x), and no function.
_KEEP_INPUTS = _ACTIVATIONS.keys() - {"Tanh"}
_DEFAULT = "torch.nn.modules.activation.Tanh"
# Names of inputs and outputs of modules: the vector of a text or of each token, or a pair's scores.
SENTENCE, TOKENS, SCORES = "sentence_embedding", "token_embeddings", "scores"
_LARGEST = 2**16


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadModule:
    """A module that changes the vector of a text.

    Attributes:
        name: Name of its class.
        path: Its folder in the checkpoint.
        config: Content of its config.json.
    """

    name: ModuleName
    path: str = ""
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def head_module(
    name: ModuleName,
    path: str,
    config: Fields,
    *,
    vector: str = SENTENCE,
    result: str | None = None,
) -> HeadModule:
    """Return a module, given the content of its config.json.

    Args:
        name: Name of its class.
        path: Its folder in the checkpoint.
        config: Content of its config.json; empty without the file.
        vector: Name of the input that it must read.
        result: Name of the output that it must write; `None` for the same name.
    """
    place, content = join(path, CONFIG), config.values
    if name == "Dense":
        for size in ("in_features", "out_features"):
            config.integer(size, 1, _LARGEST)
        activation = content.get("activation_function", _DEFAULT)
        known = ", ".join(_ACTIVATIONS)
        # sentence-transformers runs no other code, and takes Tanh, for which it was not trained.
        is_known = str(activation).startswith("torch.") and _class(activation) in _ACTIVATIONS
        for key, is_supported, why in (
            ("activation_function", is_known, f"expected one of torch's {known}"),
            (
                "use_residual",
                not content.get("use_residual") or _class(activation) in _KEEP_INPUTS,
                f"a residual is added with {', '.join(sorted(_KEEP_INPUTS))} only",
            ),
        ):
            if not is_supported:
                raise CheckpointError(
                    f"{place} has {key}={content[key]!r}, which is not supported: {why}."
                )
    read = content.get("module_input_name") or vector
    found = {"input": read, "output": content.get("module_output_name") or read}
    for end, expected in (("input", vector), ("output", result or vector)):
        if found[end] != expected:
            raise CheckpointError(
                f"{place} has module_{end}_name={found[end]!r}, which is not supported: the module "
                f"has to read {vector!r} and write {result or vector!r}."
            )
    if name == "LayerNorm":
        config.integer("dimension", 1, _LARGEST)
    return HeadModule(name=name, path=path, config=content)


def steps_of(modules: tuple[HeadModule, ...], find: FindFile) -> tuple[Step, ...]:
    """Return modules as steps of a head, in float.

    Raises:
        CheckpointError: A file of weights is missing or damaged, or a weight has another shape.
    """
    steps: list[Step] = []
    for module in modules:
        if module.name == "Normalize":
            steps.append("normalize")
            continue
        weights = weights_of(module.path, find)
        if weights is None:
            raise CheckpointError(
                f"The module {module.path!r} of modules.json has no weights: neither "
                f"{' nor '.join(WEIGHTS)}. Save the model with sentence-transformers again."
            )
        config = module.config
        reader = Reader(
            weights=weights, config=Config(values=config, path=join(module.path, CONFIG))
        )
        if module.name == "LayerNorm":
            shape = (config["dimension"],)
            gain, bias = (reader.tensor(f"norm.{each}", shape) for each in ("weight", "bias"))
            steps.append(Norm(weight=gain, bias=bias, epsilon=1e-5))
            continue
        inputs, outputs = config["in_features"], config["out_features"]
        has_bias = config.get("bias", True)
        bias = reader.tensor("linear.bias", (outputs,)) if has_bias else reader.zeros(outputs)
        weight = reader.tensor("linear.weight", (outputs, inputs))
        activation = _ACTIVATIONS[_class(config.get("activation_function", _DEFAULT))]
        if not config.get("use_residual"):
            steps += _dense(weight, bias, activation)
        elif inputs == outputs:
            one = np.eye(outputs, dtype=np.float32)
            steps += _residual_dense(weight, bias, activation, one)
        else:
            residual = reader.tensor("residual.weight", (outputs, inputs))
            steps += _residual_dense(weight, bias, activation, residual)
    return tuple(steps)


def weights_of(path: str, find: FindFile) -> Weights | None:
    """Return the weights in a folder of the checkpoint; `None` if it has none."""
    found = (find(str(PurePosixPath(path, name))) for name in WEIGHTS)
    file = next((each for each in found if each is not None), None)
    return None if file is None else Weights(file.parent)


def _dense(weight: Floats, bias: Floats, activation: Activation | None) -> list[Step]:
    linear = Linear(weight=weight, bias=bias)
    return [linear, activation] if activation else [linear]


def _residual_dense(
    weight: Floats, bias: Floats, activation: Activation | None, residual: Floats
) -> list[Step]:
    """Return steps that add the product of the input and `residual`, `(out, in)`, to a Dense."""
    if activation is None:
        return _dense(weight + residual, bias, None)
    # See `_KEEP_INPUTS`: a second layer takes what is added out of the activations.
    count = len(bias)
    every = np.concatenate([weight, residual, -residual])
    one, none = np.eye(count, dtype=np.float32), np.zeros(count, np.float32)
    return [
        *_dense(every, np.concatenate([bias, none, none]), activation),
        *_dense(np.concatenate([one, one, -one], axis=1), none, None),
    ]


def write_modules(
    modules: tuple[HeadModule, ...], folder: Path, find: FindFile
) -> list[tuple[str, str]]:
    """Write modules to a folder, and return the names of their classes with their new paths."""
    made = []
    for index, module in enumerate(modules, start=2):
        path = f"{index}_{module.name}"
        (folder / path).mkdir(exist_ok=True)
        if module.config:
            text = json.dumps(dict(module.config), indent=2) + "\n"
            (folder / path / CONFIG).write_text(text, encoding="utf-8")
        weights = weights_of(module.path, find)
        if weights is not None and weights.path.name == SAFETENSORS:
            shutil.copyfile(weights.path, folder / path / SAFETENSORS)
        elif weights is not None:
            # `load` does not need the package.
            from safetensors.numpy import save_file

            tensors = {name: np.ascontiguousarray(weights.read(name)) for name in weights}
            save_file(tensors, folder / path / SAFETENSORS)
        made.append((str(module.name), path))
    return made


def _class(activation: object) -> str:
    return str(activation).rpartition(".")[2]
