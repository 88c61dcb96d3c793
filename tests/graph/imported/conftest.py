"""Graphs as other people's exporters write them, each made once a session."""

from __future__ import annotations

import functools
import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

NAMES = ("input_ids", "attention_mask", "token_type_ids")
AUTO = {
    "bert": transformers.AutoModelForSequenceClassification,
    "roberta": transformers.AutoModelForQuestionAnswering,
    "distilbert": transformers.AutoModelForTokenClassification,
    "electra": transformers.AutoModelForSequenceClassification,
}
OUTPUTS = {"roberta": ("start_logits", "end_logits")}


class _Plain(torch.nn.Module):
    """Takes inputs by position and returns a tuple."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True))).to_tuple()


def export(
    path: Path, model: torch.nn.Module, names: tuple[str, ...], *, opset: int, dynamo: bool = False
) -> Path:
    """Exports a model with a dynamic batch and sequence."""
    ids = torch.arange(7, 17).view(2, 5)
    mask = torch.tensor([[1] * 5, [1] * 3 + [0] * 2])
    example = (ids, mask, torch.zeros_like(ids))[: len(names)]
    outputs = OUTPUTS.get(model.config.model_type, ("logits",))
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence")
            torch.onnx.export(
                _Plain(model, names),
                example,
                path,
                input_names=names,
                output_names=outputs,
                dynamic_shapes=(tuple({0: batch, 1: sequence} for _ in names),),
                opset_version=opset,
                dynamo=True,
                verbose=False,
                external_data=False,
            )
        else:
            torch.onnx.export(
                _Plain(model, names),
                example,
                path,
                input_names=names,
                output_names=outputs,
                dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
                opset_version=opset,
                dynamo=False,
            )
    logging.disable(logging.NOTSET)
    return path


@pytest.fixture(scope="session")
def exported(make_model, run_folder) -> Callable[..., Path]:
    """Export a family's model with a head and two layers, once. Do not change the file."""

    @functools.cache
    def make(family: str, attention: str = "eager", opset: int = 14, dynamo: bool = False) -> Path:
        model = make_model(family, AUTO[family], num_hidden_layers=2, vocab_size=128)
        model.set_attn_implementation(attention)
        names = NAMES[: 2 if family in ("roberta", "distilbert") else 3]
        path = run_folder / f"{family}-{attention}-{opset}-{dynamo}.onnx"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            export(partial, model, names, opset=opset, dynamo=dynamo).replace(path)
        return path

    return make


@pytest.fixture(scope="session")
def padded_inputs() -> dict[str, np.ndarray]:
    """Two rows of another length than the exporters saw, the second half [PAD]."""
    rng = np.random.default_rng(0)
    mask = np.array([[1] * 8, [1] * 5 + [0] * 3, [1] * 2 + [0] * 6])
    return {
        "input_ids": rng.integers(5, 128, size=mask.shape),
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(mask),
    }
