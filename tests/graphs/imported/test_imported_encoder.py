"""Existing ONNX models are read as encoders, with every kind of head and pooling."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
import transformers
from torch import Tensor, nn

from calibrated import calibrate
from encoder_reference import check_read, random_inputs
from qdqbert.calibration.reference.sited_encoder import SitedEncoder
from qdqbert.common.choices import POOLING_MODES
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.encoders.families import quantized_family
from qdqbert.encoders.heads import POOLINGS
from qdqbert.encoders.sites import linear_layers_of, sites_of
from qdqbert.graphs.encoder import read_encoder
from qdqbert.graphs.imported.canonical_form import to_canonical_form
from qdqbert.graphs.imported.onnx_file import read_graph
from qdqbert.graphs.writer import make_graph
from qdqbert.quantization.numerics.ranges import Max
from qdqbert.quantization.recipes import WIDE_INPUTS
from qdqbert.training.body import pool
from qdqbert.training.insert.sited import insert_quantizers_

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


def canonical(path: Path) -> ir.Model:
    return to_canonical_form(read_graph(path))


def kinds(steps: tuple[Any, ...]) -> list[str]:
    return [step if isinstance(step, str) else type(step).__name__ for step in steps]


@pytest.fixture
def classifier(make_model) -> Any:
    """The BERT classifier that `exported` exports."""
    head = transformers.AutoModelForSequenceClassification
    return make_model("bert", head, num_hidden_layers=2, vocab_size=128)


@pytest.mark.parametrize("which", EXPORTS, ids=lambda which: "-".join(map(str, which)))
@pytest.mark.usual("bert-*-False")
def test_exports_of_each_kind_are_read(exported, run_plainly, which) -> None:
    read = check_read(canonical(exported(*which)), run_plainly, random_inputs((5, 9)))
    tables = {"roberta": 2, "distilbert": 2}.get(which[0], 3)
    # RoBERTa's table of token types has one row.
    assert len(sites_of(read)) == 2 * 20 + tables + (which[0] == "roberta")
    assert all(site.name.startswith(("encoder.layer.", "embeddings.")) for site in sites_of(read))


def test_weights_are_those_of_each_linear_layer(exported, classifier) -> None:
    weights = {name.removeprefix("bert."): each for name, each in classifier.named_parameters()}
    graph = canonical(exported("bert"))
    read = read_encoder(graph, ["logits"], longest=64).encoder
    linears = [linear for layer in read.layers for linear, _ in linear_layers_of(layer)]
    assert len(linears) == 12
    for linear in linears:
        for name in ("weight", "bias"):
            expected = weights[f"{linear.module}.{name}"].detach().numpy()
            np.testing.assert_array_equal(getattr(linear, name), expected)


@pytest.mark.parametrize("which", EXPORTS[:2], ids=lambda which: "-".join(map(str, which)))
def test_the_graph_that_is_written_returns_the_same_values(
    exported, padded_inputs, run_plainly, which
) -> None:
    graph = canonical(exported(*which))
    expected = run_plainly(graph, padded_inputs)
    read = read_encoder(graph, ["logits"], longest=64).encoder
    written = make_graph(read)
    np.testing.assert_allclose(
        run_plainly(written, padded_inputs)["logits"], expected["logits"], atol=1e-5
    )


def test_ranges_and_scales_are_those_of_the_checkpoint(exported, classifier) -> None:
    sited = insert_quantizers_(classifier, quantized_family("bert"))
    read = read_encoder(canonical(exported("bert")), ["logits"], longest=64).encoder
    encoder = SitedEncoder(read, ("layer", "table"))
    batches = [Batch(indices=tuple(range(5)), inputs=random_inputs((5, 9)))]
    found, expected = (
        calibrate(
            each,
            lambda inputs, run=run: run(**inputs),
            batches,
            sites=[site.name for site in each.sites if site.kind == "activation"],
            calibrator=Max(),
            smoothing=WIDE_INPUTS,
        )
        for each, run in ((encoder.sited, encoder), (sited, classifier))
    )
    assert found.scales.keys() == {name.removeprefix("bert.") for name in expected.scales}
    for name, scale in expected.scales.items():
        torch.testing.assert_close(
            found.scales[name.removeprefix("bert.")], scale, rtol=1e-4, atol=1e-6
        )
    assert found.ranges.keys() == {name.removeprefix("bert.") for name in expected.ranges}
    for name, each in expected.ranges.items():
        wanted = found.ranges[name.removeprefix("bert.")]
        assert (wanted.low, wanted.high) == pytest.approx((each.low, each.high), rel=1e-4), name


class Plain(nn.Module):
    """A model that takes inputs by position, and what is computed from its outputs."""

    def __init__(self, model: Any, after: Callable[[Any, Tensor], tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model, self.after = model, after
        self.dense = nn.Linear(32, 24)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return self.after(outputs, attention_mask)


def export(path: Path, model: nn.Module, outputs: list[str]) -> ir.Model:
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
    return canonical(path)


def last_position(states: Tensor, _: Tensor) -> Tensor:
    return nn.functional.normalize(states[:, -1], dim=-1)


def joined(states: Tensor, mask: Tensor) -> Tensor:
    kept = mask[..., None]
    return torch.cat([states[:, 0], (states * kept).sum(1) / kept.sum(1)], dim=-1)


@pytest.mark.parametrize(
    ("head", "names"),
    [(joined, "s"), (joined, "states s"), (joined, "s states t"), (last_position, "states s")],
)
def test_a_head_that_is_not_known_is_kept_beside_the_states(
    make_model, run_plainly, tmp_path, head, names
) -> None:
    def after(made: Any, mask: Tensor) -> tuple[Tensor, ...]:
        states = made.last_hidden_state
        made_of = {"states": states, "s": head(states, mask), "t": head(states, mask) + 1}
        return tuple(made_of[name] for name in names.split())

    model = Plain(make_model("bert", vocab_size=128, num_hidden_layers=1), after)
    graph = export(tmp_path / "model.onnx", model, names.split())
    inputs = random_inputs((5, 9))
    expected = run_plainly(graph, inputs)
    read = read_encoder(graph, names.split(), longest=64)
    assert read.dropped == ()
    found = run_plainly(make_graph(read.encoder), inputs)
    assert found.keys() == expected.keys()
    text = inputs["attention_mask"] == 1
    for name, wanted in expected.items():
        kept = text if name == "states" else slice(None)
        np.testing.assert_allclose(found[name][kept], wanted[kept], atol=1e-5)


# Changes to the options of ONNX Runtime's optimizer, and an operator that they make.
FUSIONS = {
    "plain": ({}, "Attention"),
    "mask-of-tokens": ({"attention_mask_format": 2}, "Attention"),
    "heads": ({"use_multi_head_attention": True}, "MultiHeadAttention"),
    "heads-without-bias": (
        {"use_multi_head_attention": True, "disable_multi_head_attention_bias": True},
        "MultiHeadAttention",
    ),
    "heads-and-mask-of-tokens": (
        {"use_multi_head_attention": True, "attention_mask_format": 2},
        "MultiHeadAttention",
    ),
    "heads-without-embeddings": (
        {"use_multi_head_attention": True, "enable_embed_layer_norm": False},
        "MultiHeadAttention",
    ),
    "approximate": ({"enable_gelu_approximation": True}, "FastGelu"),
    "no-attention": ({"enable_attention": False}, "SkipLayerNormalization"),
    "no-embeddings": ({"enable_embed_layer_norm": False}, "Attention"),
    "no-skip": ({"enable_skip_layer_norm": False}, "Attention"),
    "no-skipped-bias": ({"enable_bias_skip_layer_norm": False}, "SkipLayerNormalization"),
    "no-bias-of-gelu": ({"enable_bias_gelu": False}, "SkipLayerNormalization"),
}


@pytest.mark.parametrize(
    ("which", "name", "level"),
    [
        pytest.param(
            which,
            name,
            level,
            id=f"{'-'.join(map(str, which))}-{name}-{level}",
            marks=() if (which, name, level) == (EXPORTS[0], "heads", 0) else pytest.mark.slow,
        )
        for which in EXPORTS
        for name in FUSIONS
        for level in (0, 1, 2, 99)
        if level == 0 or name in ("plain", "heads")
    ],
)
def test_what_onnxruntime_fuses_is_read(
    exported, run_plainly, tmp_path, which, name, level
) -> None:
    optimizer = pytest.importorskip("onnxruntime.transformers.optimizer")
    changes, operator = FUSIONS[name]
    options = optimizer.FusionOptions("bert")
    for field, value in changes.items():
        assert hasattr(options, field)
        setattr(options, field, value)
    fused = optimizer.optimize_model(
        str(exported(*which)), "bert", 4, 32, opt_level=level, optimization_options=options
    )
    if which == EXPORTS[0]:
        assert operator in {node.op_type for node in fused.model.graph.node}
    fused.save_model_to_file(str(tmp_path / "model.onnx"))
    check_read(canonical(tmp_path / "model.onnx"), run_plainly, random_inputs((5, 9)))


@pytest.mark.parametrize(("family", "head", "steps"), HEADS)
@pytest.mark.usual("mpnet-*", "camembert-*", "bert-*")
def test_heads_of_each_family_are_read(
    make_model, run_plainly, tmp_path, family, head, steps
) -> None:
    auto_class = getattr(transformers, f"AutoModelFor{head}")
    model = Plain(make_model(family, auto_class, vocab_size=128), lambda made, _: (made.logits,))
    graph = export(tmp_path / "model.onnx", model, ["logits"])
    read = check_read(graph, run_plainly, random_inputs((5, 9)))
    (found,) = read.heads
    of_tokens = head in ("MaskedLM", "TokenClassification")
    assert found.poolings == ("none" if of_tokens else "first",)
    assert kinds(found.steps) == steps


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_layers_of_modernbert_are_read(make_model, run_plainly, tmp_path, attention) -> None:
    model = make_model("modernbert", vocab_size=128)
    model.set_attn_implementation(attention)
    plain = Plain(model, lambda made, _: (made.last_hidden_state,))
    graph = export(tmp_path / "model.onnx", plain, ["last_hidden_state"])
    read = check_read(graph, run_plainly, random_inputs((5, 23)))
    assert read.limit == 64
    assert read.final_norm is not None
    assert [layer.attention.window for layer in read.layers] == [None, 4]
    for layer in read.layers:
        assert layer.attention.rotary is not None
        assert layer.gate is not None
        assert layer.up_norm is not None


def pool_in_each_way(outputs: Any, mask: Tensor, *, dense: nn.Module) -> tuple[Tensor, ...]:
    states = outputs.last_hidden_state
    heads = [
        SentenceHead(poolings=(mode,), normalize=normalize, max_length=None)
        for mode in POOLING_MODES
        for normalize in (False, True)
    ]
    pooled = [pool(states, mask, head, head.last_steps) for head in heads]
    return states, *pooled, nn.functional.normalize(torch.tanh(dense(pooled[0])), dim=-1)


def test_each_pooling_is_read(make_model, run_plainly, tmp_path) -> None:
    model = Plain(make_model("bert", vocab_size=128), lambda made, _: made)
    model.after = functools.partial(pool_in_each_way, dense=model.dense)
    names = [f"{mode}_{normalize}" for mode in POOLING_MODES for normalize in (False, True)]
    graph = export(tmp_path / "model.onnx", model, ["states", *names, "dense"])
    read = check_read(graph, run_plainly, random_inputs((5, 9)))
    found = {
        output.name: (*head.poolings, kinds(head.steps))
        for head in read.heads
        for output in head.outputs
    }
    poolings = {mode: POOLINGS[mode] for mode in POOLING_MODES}
    expected = {f"{mode}_False": (pooling, []) for mode, pooling in poolings.items()}
    expected |= {f"{mode}_True": (pooling, ["normalize"]) for mode, pooling in poolings.items()}
    # Both means have the same direction.
    expected["mean_sqrt_len_tokens_True"] = expected["mean_True"]
    expected["states"] = ("none", [])
    expected["dense"] = (poolings[POOLING_MODES[0]], ["Linear", "tanh", "normalize"])
    assert found == expected
