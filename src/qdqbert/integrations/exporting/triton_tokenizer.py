"""Turns texts into the inputs of a model: model.py of a tokenizer in a model repository of Triton.

It needs the packages tokenizers and numpy only. Next to it lies tokenizer.json. The parameters in
config.pbtxt say how long inputs may be, and how they are padded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

OFFSETS = "offsets"


class TextTokenizer:
    """Cuts and pads texts or pairs of texts."""

    def __init__(self, folder: Path, parameters: Mapping[str, str]) -> None:
        """Read the tokenizer.

        Args:
            folder: Folder with tokenizer.json.
            parameters: Values by name: `max_length`; `truncation_side`; `pad_to_multiple_of`;
                `prompt`, which is put before each text; `offsets_of`, whether and of which input
                there are `offsets`; `pad_NAME`, the padding of each other output.
        """
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._limit = int(parameters["max_length"])
        self._tokenizer.enable_truncation(
            self._limit, direction=parameters.get("truncation_side", "right")
        )
        self._multiple = int(parameters.get("pad_to_multiple_of", 1))
        self._prompt = parameters.get("prompt", "")
        self._has_offsets = "offsets_of" in parameters
        self._padding = {
            name.removeprefix("pad_"): int(value)
            for name, value in parameters.items()
            if name.startswith("pad_") and name != "pad_to_multiple_of"
        }

    def __call__(self, *columns: Sequence[str]) -> dict[str, NDArray[np.int64]]:
        """Return the inputs of the model, each `(texts, tokens)`, int64.

        `offsets`, `(texts, tokens, 2)`, has the first character of each token of the last text, and
        the character after its last one; -1 for other tokens.

        Args:
            columns: The texts, or the first texts of pairs and the second ones.
        """
        if len(columns) == 1:
            items: Sequence[Any] = [self._prompt + text for text in columns[0]]
        else:
            items = list(zip(*columns, strict=True))
        encodings = self._tokenizer.encode_batch(list(items))
        longest = max((len(each.ids) for each in encodings), default=0)
        # Triton puts requests into one batch only if their inputs have the same shape.
        width = min(-(-longest // self._multiple) * self._multiple, self._limit)
        parts = {
            "input_ids": [each.ids for each in encodings],
            "attention_mask": [[1] * len(each.ids) for each in encodings],
            "token_type_ids": [each.type_ids for each in encodings],
        }
        found = {}
        for name, padding in self._padding.items():
            found[name] = np.full((len(encodings), width), padding, dtype=np.int64)
            for row, values in zip(found[name], parts[name], strict=True):
                row[: len(values)] = values
        if self._has_offsets:
            found[OFFSETS] = np.full((len(encodings), width, 2), -1, dtype=np.int64)
            last = len(columns) - 1
            for row, each in zip(found[OFFSETS], encodings, strict=True):
                for place, text in enumerate(each.sequence_ids):
                    if text == last:
                        row[place] = each.offsets[place]
        return found


class TritonPythonModel:
    """The interface of Triton's Python backend."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the tokenizer. Triton calls this once."""
        config = json.loads(args["model_config"])
        parameters = {name: each["string_value"] for name, each in config["parameters"].items()}
        self._inputs = [each["name"] for each in config["input"]]
        self._tokenize = TextTokenizer(Path(__file__).parent, parameters)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return a response to each request."""
        # Triton has this module, and no package index.
        import triton_python_backend_utils as triton

        responses = []
        for request in requests:
            columns = [
                [_text(each) for each in tensor.as_numpy().reshape(-1)]
                for name in self._inputs
                if (tensor := triton.get_input_tensor_by_name(request, name)) is not None
            ]
            tensors = [
                triton.Tensor(name, values) for name, values in self._tokenize(*columns).items()
            ]
            responses.append(triton.InferenceResponse(output_tensors=tensors))
        return responses


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
