"""Graphs as common exporters write them, each made once per session."""

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
    """A model that takes inputs by position and returns a tuple."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True))).to_tuple()


def export(
    path: Path,
    model: torch.nn.Module,
    names: tuple[str, ...],
    *,
    opset: int,
    dynamo: bool = False,
    fixed: tuple[int, int] | None = None,
) -> Path:
    """Export a model, with a dynamic batch and sequence unless their sizes are `fixed`."""
    rows, tokens = fixed or (2, 5)
    ids = torch.arange(7, 7 + rows * tokens).view(rows, tokens)
    mask = torch.ones_like(ids)
    mask[-1, -2:] = 0
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
                dynamic_shapes=None if fixed else (tuple({0: batch, 1: sequence} for _ in names),),
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
                dynamic_axes=None
                if fixed
                else {name: {0: "batch", 1: "sequence"} for name in names},
                opset_version=opset,
                dynamo=False,
            )
    logging.disable(logging.NOTSET)
    return path


@pytest.fixture(scope="session")
def export_model() -> Callable[..., Path]:
    """Return a function that exports a model of two inputs to a file."""
    return lambda path, model, **options: export(path, model, NAMES[:2], opset=18, **options)


@pytest.fixture(scope="session")
def exported(make_model, run_folder) -> Callable[..., Path]:
    """Return a function that exports a two-layer model with a head; its file must not change."""

    @functools.cache
    def make(
        family: str,
        attention: str = "eager",
        opset: int = 14,
        dynamo: bool = False,
        fixed: tuple[int, int] | None = None,
    ) -> Path:
        model = make_model(family, AUTO[family], num_hidden_layers=2, vocab_size=128)
        model.set_attn_implementation(attention)
        names = NAMES[: 2 if family in ("roberta", "distilbert") else 3]
        path = run_folder / f"{family}-{attention}-{opset}-{dynamo}-{fixed}.onnx"
        if not path.exists():
            partial = path.with_suffix(f".{os.getpid()}")
            export(partial, model, names, opset=opset, dynamo=dynamo, fixed=fixed).replace(path)
        return path

    return make


@pytest.fixture(scope="session")
def padded_inputs() -> dict[str, np.ndarray]:
    """Return three rows of a length that the exporters did not see, two of them padded."""
    rng = np.random.default_rng(0)
    mask = np.array([[1] * 8, [1] * 5 + [0] * 3, [1] * 2 + [0] * 6])
    return {
        "input_ids": rng.integers(5, 128, size=mask.shape),
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(mask),
    }
