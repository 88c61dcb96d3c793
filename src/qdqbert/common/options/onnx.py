"""What an existing .onnx file lacks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from qdqbert.common.errors import UserInputError
from qdqbert.common.objects import Copied, OptionalInput
from qdqbert.common.options.declared import Options, option


class Onnx(Options):
    """Existing ONNX models.

    Attributes:
        tokenizer: Folder, URL or hub id of the tokenizer and config of an .onnx file. The folder of
            the file by default.
        input_names: Names of the inputs of an .onnx file by transformers' names, where they
            differ: `{"input_ids": "tokens"}`.
        output_names: Names of the outputs of an .onnx file by transformers' names, where they
            differ: `{"logits": "scores"}`.
    """

    tokenizer: OptionalInput = option(default=None)
    input_names: Mapping[str, str] | None = option(default=None, flag="input-name")
    output_names: Mapping[str, str] | None = option(default=None, flag="output-name")

    @property
    def tokenizer_path(self) -> str | None:
        """The tokenizer's local folder, or its name on the hub."""
        return None if self.tokenizer is None else os.fspath(self.tokenizer)


def is_onnx_file(model: str | os.PathLike[str]) -> bool:
    """Return whether a model is an .onnx file rather than a checkpoint or a folder."""
    return str(model).lower().endswith(".onnx") and not Path(model).is_dir()


def check_onnx_options(options: Onnx, model: str | Copied | None) -> None:
    """Refuse options for .onnx files in a call without one.

    `model` is the name of its model, for the message.

    Raises:
        UserInputError: One of them was given.
    """
    for name in options.given():
        raise UserInputError(
            f"`{name}` applies to .onnx files only, and `model={model!r}` is not one. Leave it "
            "out.",
            argument=name,
        )
