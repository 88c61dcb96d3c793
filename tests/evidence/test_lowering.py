from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from qdqbert.encoders.quantize import Choices
from qdqbert.engines.registry import open_runner
from qdqbert.engines.runner import Runner
from qdqbert.evidence import lowering
from qdqbert.evidence.lowering import LoweringCheck, Reference, check_lowering, layer_fidelity
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.edit import tidy
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.graphs.targets.files import save_encoder
from qdqbert.graphs.targets.lowering import lower

GOOD = LoweringCheck(
    engine="onnxruntime",
    worst_layer_db=60.0,
    worst_layer="x",
    end_to_end_db=30.0,
    ties_db=60.0,
    native_db=60.0,
)


@pytest.fixture(scope="module")
def bert(prepared):
    return prepared("bert")


@pytest.fixture(scope="module")
def references(bert) -> list[Reference]:
    return bert.references(bert.plan("onnxruntime"), bert.smooth.ranges, bert.smooth.scales)


def lowered(bert, target: str = "onnxruntime") -> ir.Model:
    plan = bert.plan(target)
    return lower(bert.encoder, plan, Choices(ranges=bert.smooth.ranges, scales=bert.scales(plan)))


def constant_named(model: ir.Model, ending: str) -> ir.Value:
    return next(value for name, value in model.graph.initializers.items() if name.endswith(ending))


def test_references_contain_the_input_of_each_layer_and_the_outputs(bert, references) -> None:
    assert len(references) == 2
    for reference, batch in zip(references, bert.batches[-2:], strict=True):
        shape = (*batch.inputs["input_ids"].shape, 32)
        assert len(reference.states) == len(bert.layers)
        assert list(reference.outputs) == ["last_hidden_state"]
        everything = [*reference.states.values(), *reference.outputs.values()]
        assert all(state.shape == shape for state in everything)
        assert set(reference.noisy) == {*reference.states, *reference.outputs}


def test_a_correct_graph_is_exact(bert, references, check_lowered) -> None:
    check = check_lowered(lowered(bert), references, "onnxruntime")
    assert check.engine == "onnxruntime"
    assert check.worst_layer_db >= 40
    assert check.is_exact
    # Rounding ties grow from layer to layer, and never shrink much.
    assert check.end_to_end_db > 20


def test_packed_weights_are_exact_and_a_wrong_one_is_found(bert, references, tmp_path) -> None:
    path, plan = tmp_path / "model.safetensors", bert.plan("native")
    encoder = encoder_of(bert.checkpoint)
    save_encoder(encoder, plan, bert.smooth, path)
    check = check_lowering(path, references, "native")
    assert check.worst_layer_db >= 40
    assert check.native_db >= 40
    assert check.is_exact
    first, second = encoder.layers
    up = dataclasses.replace(second.up, bias=second.up.bias[::-1].copy())
    wrong = (first, dataclasses.replace(second, up=up))
    save_encoder(dataclasses.replace(encoder, layers=wrong), plan, bert.smooth, path)
    check = check_lowering(path, references, "native")
    assert check.worst_layer == "last_hidden_state"
    assert check.worst_layer_db < 25


@pytest.mark.parametrize(
    ("ending", "change"),
    [
        ("layer.1.output.dense.weight_scale", lambda array: array * np.float32(1.1)),
        ("layer.1.intermediate.dense.bias", lambda array: array[::-1].copy()),
        ("layer.1.attention.self.qkv_bias", lambda array: array[::-1].copy()),
        ("layer.1.output.dense.weight_codes", lambda array: -array),
    ],
    ids=["scale", "bias", "attention-bias", "codes"],
)
def test_one_wrong_constant_is_found_in_its_layer(
    bert, references, ending, change, check_lowered
) -> None:
    model = lowered(bert)
    value = constant_named(model, ending)
    value.const_value = ir.tensor(change(value.const_value.numpy()), name=value.name)
    check = check_lowered(tidy(model), references, "onnxruntime")
    assert check.worst_layer_db < 40
    assert not check.is_exact
    assert check.worst_layer == "last_hidden_state"


@pytest.mark.parametrize(
    ("engine", "layers"), [("onnxruntime", [True, False]), ("openvino", [True])]
)
def test_graphs_are_opened_no_more_than_needed(
    bert, references, check_lowered, monkeypatch, tmp_path, engine, layers
) -> None:
    opened: list[tuple[str, bool]] = []

    def open_on_onnxruntime(_: str, path: Path, *, exact: bool = False, **settings: Any) -> Runner:
        opened.append((path.name, exact))
        assert path.is_relative_to(tmp_path)
        return open_runner("onnxruntime", path, exact=exact, **settings)

    monkeypatch.setattr(lowering, "open_runner", open_on_onnxruntime)
    check_lowered(lowered(bert), references, engine)
    assert opened == [*(("layers.onnx", exact) for exact in layers), ("model.onnx", False)]
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_padding_is_not_compared(bert, references, check_lowered) -> None:
    def spoiled(reference: Reference) -> Reference:
        padding = reference.inputs["attention_mask"] == 0
        output = reference.outputs["last_hidden_state"].copy()
        output[padding] = 1e6
        return dataclasses.replace(reference, outputs={"last_hidden_state": output})

    assert any((each.inputs["attention_mask"] == 0).any() for each in references)
    expected = check_lowered(lowered(bert), references, "onnxruntime")
    actual = check_lowered(lowered(bert), [spoiled(each) for each in references], "onnxruntime")
    assert actual.worst_layer_db == expected.worst_layer_db


@pytest.mark.parametrize(
    ("changes", "is_exact", "saturates"),
    [
        ({}, True, False),
        ({"worst_layer_db": 39.0, "native_db": 39.0}, False, False),
        ({"worst_layer_db": 39.0, "native_db": 39.0, "ties_db": 41.0}, True, False),
        ({"native_db": 20.0}, True, True),
        ({"worst_layer_db": 20.0, "native_db": 19.0}, False, False),
        ({"worst_layer_db": math.inf, "native_db": math.inf, "ties_db": math.inf}, True, False),
    ],
    ids=["good", "differs", "ties-explain-it", "saturates", "differs-anyway", "equal"],
)
def test_results_follow_from_the_numbers(changes, is_exact, saturates) -> None:
    check = dataclasses.replace(GOOD, **changes)
    assert (check.is_exact, check.saturates) == (is_exact, saturates)


def test_fidelity_of_layers_is_that_of_all_batches_together_without_padding() -> None:
    random = np.random.default_rng(0)
    references, floats, signal, noise = [], [], 0.0, 0.0
    for mask in (np.array([[1, 1, 1], [1, 0, 0]]), np.array([[1, 1, 1, 1, 0]])):
        exact = random.normal(size=(*mask.shape, 4)).astype(np.float32)
        rounded = np.round(exact * 8) / 8
        logits = exact[:, 0]
        for made, state in ((floats, exact), (references, rounded)):
            made.append(
                Reference(
                    inputs={"attention_mask": mask},
                    states={"layer": state},
                    outputs={"logits": logits},
                    noisy={},
                )
            )
        kept = mask.astype(bool)
        signal += float((exact[kept].astype(np.float64) ** 2).sum())
        noise += float(((rounded - exact)[kept].astype(np.float64) ** 2).sum())
    layer, output = layer_fidelity(references, floats)
    assert (layer.name, output.name) == ("layer", "logits")
    assert layer.sqnr_db == pytest.approx(10 * math.log10(signal / noise), rel=1e-6)
    assert output.sqnr_db == math.inf


@pytest.mark.parametrize(
    ("to_float", "far"),
    [
        ({}, ()),
        ({"pytorch": 37.5, "float32": 32.0, "bf16": 25.1}, ()),
        ({"pytorch": 37.5, "float32": 32.0, "bf16": 24.9}, ("bf16",)),
        ({"pytorch": 37.5, "float32": 20.5, "bf16": 21.1}, ("float32", "bf16")),
        # It is the quantization that is far from float.
        ({"pytorch": 12.0, "float32": 6.1, "bf16": 6.1}, ()),
        ({"pytorch": 12.0, "float32": 5.9, "bf16": 6.1}, ("float32",)),
        ({"pytorch": math.inf, "float32": 130.0, "bf16": 42.0}, ()),
    ],
)
def test_an_engine_is_far_if_the_quantization_is_not(to_float, far) -> None:
    check = dataclasses.replace(GOOD, to_float=to_float)
    assert check.far == far
    assert check.is_exact == (not far)


def test_a_wrong_end_of_the_embeddings_is_found_in_the_first_layer_and_the_whole(
    bert, references, tmp_path
) -> None:
    def check(factor: float) -> LoweringCheck:
        model = lowered(bert)
        norm = next(node for node in model.graph if node.outputs[0].name == "layer.0.input")
        value = norm.inputs[1]
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(factor))
        save_graph(tidy(model), tmp_path / "model.onnx")
        return check_lowering(tmp_path / "model.onnx", references, "onnxruntime", floats=references)

    right, wrong = check(1), check(0.5)
    assert right.is_exact
    assert right.to_float == {"pytorch": math.inf, "float32": right.end_to_end_db}
    assert wrong.worst_layer == "layer.1.input"
    assert wrong.far == ("float32",)


@pytest.mark.parametrize(
    ("last_bits", "ties", "wanted"),
    [
        (1e-6, 60.0, 40.0),
        (1e-6, 38.0, 35.0),
        (1e-6, 19.0, 25.0),
        (2.0**-11, 38.0, 35.0),
        (2.0**-11, 19.0, 16.0),
        (2.0**-11, 2.0, 12.0),
        (1e-6, math.inf, 25.0),
    ],
)
def test_ties_lower_the_required_sqnr_to_a_limit(last_bits, ties, wanted) -> None:
    check = dataclasses.replace(GOOD, last_bits=last_bits, ties_db=ties)
    assert check.wanted_db == wanted
    assert dataclasses.replace(check, worst_layer_db=wanted).is_exact
    assert not dataclasses.replace(check, worst_layer_db=wanted - 0.1).is_exact
