"""Existing ONNX models are read as encoders, with every kind of head and pooling."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from encoder_reference import check_read, random_inputs
from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.choices import POOLING_MODES
from qdqbert.graph.imported.canonical_form import to_canonical_form
from qdqbert.graph.imported.onnx_file import read_graph
from qdqbert.graph.imported.roles import find_roles
from qdqbert.graph.imported.sites import SitedGraph, mark_sites
from qdqbert.graph.qdq import float_graph, insert_qdq
from qdqbert.insert.body import pool
from qdqbert.spec import Range
from qdqbert.targets import TARGETS
from qdqbert.targets.target import make_plan

# Exports of `exported`: family, kind of attention, opset and exporter.
EXPORTS = [
    ("bert", "eager", 11, False),
    ("bert", "sdpa", 14, False),
    ("bert", "eager", 18, True),
    ("roberta", "eager", 14, False),
    ("distilbert", "sdpa", 14, False),
    ("electra", "sdpa", 14, False),
]
# Families of `heads`, their heads, and the functions between the linear layers of these.
HEADS = [
    ("mpnet", "SequenceClassification", ["Linear", "tanh", "Linear"]),
    ("roberta", "SequenceClassification", ["Linear", "tanh", "Linear"]),
    ("distilbert", "SequenceClassification", ["Linear", "relu", "Linear"]),
    ("camembert", "MaskedLM", ["Linear", "gelu", "Norm", "Linear"]),
    ("electra", "TokenClassification", ["Linear"]),
    ("bert", "NextSentencePrediction", ["Linear", "tanh", "Linear"]),
]


def mark(path: Path) -> SitedGraph:
    model = to_canonical_form(read_graph(path))
    return mark_sites(model, find_roles(model))


def kinds(steps: tuple[Any, ...]) -> list[str]:
    return [step if isinstance(step, str) else type(step).__name__ for step in steps]


@pytest.mark.parametrize("which", EXPORTS, ids=lambda which: "-".join(map(str, which)))
def test_exports_of_each_kind_are_read(exported, run_plainly, which) -> None:
    sited = mark(exported(*which))
    inputs = random_inputs((5, 9))
    check_read(float_graph(sited.graph), run_plainly, inputs, has_codes=False)
    plan = make_plan(TARGETS["portable"], sited.sites, recipe="full-smoothed", embeddings="int8")
    rng = np.random.default_rng(0)
    scales = {
        name: rng.uniform(0.5, 2, weight.shape[1]).astype(np.float32)
        for name, weight in sited.weights.items()
    }
    ranges = dict.fromkeys(plan.specs, Range(amax=4, low=-3.5, high=4))
    model = insert_qdq(sited.graph, plan.specs, ranges, scales=scales)
    read = check_read(model, run_plainly, inputs)
    assert len(read.layers) == 2
    assert read.layers[0].up.codes.multiplier.shape == (32,)


class Plain(nn.Module):
    """A model that takes inputs by position, and what is computed from its outputs."""

    def __init__(self, model: Any, after: Callable[[Any, Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model, self.after = model, after
        self.dense = nn.Linear(32, 24)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return self.after(outputs, attention_mask)


def export(path: Path, model: nn.Module, outputs: list[str]) -> SitedGraph:
    ids = torch.arange(7, 17).view(2, 5)
    mask = torch.ones_like(ids)
    mask[-1, -2:] = 0
    names = ["input_ids", "attention_mask"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(),
            (ids, mask),
            path,
            input_names=names,
            output_names=outputs,
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
            opset_version=17,
            dynamo=False,
        )
    return mark(path)


@pytest.mark.parametrize(("family", "head", "steps"), HEADS)
def test_heads_of_each_family_are_read(
    make_model, run_plainly, tmp_path, family, head, steps
) -> None:
    auto_class = getattr(transformers, f"AutoModelFor{head}")
    model = Plain(make_model(family, auto_class, vocab_size=128), lambda made, _: (made.logits,))
    sited = export(tmp_path / "model.onnx", model, ["logits"])
    read = check_read(float_graph(sited.graph), run_plainly, random_inputs((5, 9)), has_codes=False)
    (found,) = read.heads
    of_tokens = head in ("MaskedLM", "TokenClassification")
    assert found.pooling == ("none" if of_tokens else "first")
    assert kinds(found.steps) == steps


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_layers_of_modernbert_are_read(make_model, run_plainly, tmp_path, attention) -> None:
    model = make_model("modernbert", vocab_size=128)
    model.set_attn_implementation(attention)
    plain = Plain(model, lambda made, _: (made.last_hidden_state,))
    graph = float_graph(export(tmp_path / "model.onnx", plain, ["last_hidden_state"]).graph)
    read = check_read(graph, run_plainly, random_inputs((5, 23)), has_codes=False, longest=64)
    assert read.limit == 64
    assert read.final_norm is not None
    assert [layer.attention.window for layer in read.layers] == [None, 4]
    for layer in read.layers:
        assert layer.attention.rotary is not None
        assert layer.gate is not None
        assert layer.up_norm is not None


def pool_in_each_way(outputs: Any, mask: Tensor, *, dense: nn.Module) -> tuple[Tensor, ...]:
    states = outputs.last_hidden_state
    pooled = [
        pool(states, mask, SentenceHead(pooling=mode, normalize=normalize, max_length=None))
        for mode in POOLING_MODES
        for normalize in (False, True)
    ]
    return states, *pooled, nn.functional.normalize(torch.tanh(dense(pooled[0])), dim=-1)


def test_each_pooling_is_read(make_model, run_plainly, tmp_path) -> None:
    model = Plain(make_model("bert", vocab_size=128), lambda made, _: made)
    model.after = functools.partial(pool_in_each_way, dense=model.dense)
    names = [f"{mode}_{normalize}" for mode in POOLING_MODES for normalize in (False, True)]
    sited = export(tmp_path / "model.onnx", model, ["states", *names, "dense"])
    model_read = float_graph(sited.graph)
    read = check_read(model_read, run_plainly, random_inputs((5, 9)), has_codes=False)
    found = {
        output.name: (head.pooling, kinds(head.steps))
        for head in read.heads
        for output in head.outputs
    }
    poolings = {mode: "first" if mode == "cls" else mode for mode in POOLING_MODES}
    expected = {f"{mode}_False": (pooling, []) for mode, pooling in poolings.items()}
    expected |= {f"{mode}_True": (pooling, ["normalize"]) for mode, pooling in poolings.items()}
    # Both means have the same direction.
    expected["mean_sqrt_len_tokens_True"] = expected["mean_True"]
    expected["states"] = ("none", [])
    expected["dense"] = (poolings[POOLING_MODES[0]], ["Linear", "tanh", "normalize"])
    assert found == expected
