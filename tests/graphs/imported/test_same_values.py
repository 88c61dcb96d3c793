from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from qdqbert.common.errors import GraphError
from qdqbert.encoders.model import EncoderModel
from qdqbert.engines.onnxruntime import OnnxRuntimeRunner
from qdqbert.graphs.imported.same_values import check_same_values
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.writer import write_graph


@pytest.fixture
def bert(prepared, tmp_path) -> tuple[EncoderModel, OnnxRuntimeRunner]:
    encoder = encoder_of(prepared("bert").checkpoint)
    write_graph(encoder, tmp_path / "model.onnx")
    return encoder, OnnxRuntimeRunner(tmp_path / "model.onnx")


def with_first_layer(encoder: EncoderModel, **changes) -> EncoderModel:
    first, *others = encoder.layers
    return dataclasses.replace(encoder, layers=(dataclasses.replace(first, **changes), *others))


def test_the_encoder_of_a_file_is_accepted(bert) -> None:
    encoder, runner = bert
    check_same_values(encoder, runner, ["last_hidden_state"], tolerance=1e-4)


@pytest.mark.parametrize("change", ["activation", "scale", "nan"])
def test_an_encoder_that_computes_something_else_is_refused(bert, change) -> None:
    encoder, runner = bert
    first = encoder.layers[0]
    attention = dataclasses.replace(first.attention, scale=first.attention.scale * 1.1)
    up = dataclasses.replace(first.up, bias=first.up.bias * np.float32("nan"))
    changes = {
        "activation": {"activation": "relu"},
        "scale": {"attention": attention},
        "nan": {"up": up},
    }
    other = with_first_layer(encoder, **changes[change])
    with pytest.raises(GraphError, match="other values of output `last_hidden_state`"):
        check_same_values(other, runner, ["last_hidden_state"], tolerance=1e-3)
