from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from calibrated import calibrate
from qdqbert.calibration.calibrate import run_passes
from qdqbert.calibration.calibration import Calibration
from qdqbert.calibration.passes import CalibrationPlan
from qdqbert.checkpoint.families import family_of
from qdqbert.encoding import Batch
from qdqbert.graph.imported import observed_graph
from qdqbert.graph.imported.canonical_form import to_canonical_form
from qdqbert.graph.imported.input_output_names import name_inputs, name_outputs
from qdqbert.graph.imported.observed_graph import ObservedGraph
from qdqbert.graph.imported.onnx_file import read_graph
from qdqbert.graph.imported.roles import find_roles
from qdqbert.graph.imported.sites import SitedGraph, mark_sites
from qdqbert.insert.body import GraphBody
from qdqbert.insert.sited import insert_quantizers_
from qdqbert.numerics.ranges import Max
from qdqbert.recipes import WIDE_INPUTS, QuantizerOptions, build_recipe
from qdqbert.spec import Smoothing


@dataclasses.dataclass(frozen=True)
class Seen:
    """An observer that calls two functions."""

    start_batch: Any = lambda mask: None
    observe: Any = lambda site, x: None


def make_batches(rows: int, tokens: int, *, seed: int, padding: int = 4) -> Batch:
    rng = np.random.default_rng(seed)
    mask = np.ones((rows, tokens), np.int64)
    mask[:, tokens - padding :] = 0
    ids = np.where(mask == 1, rng.integers(5, 100, size=mask.shape), 0)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
    return Batch(indices=tuple(range(rows)), inputs=inputs)


BATCHES = [make_batches(4, 12, seed=1), make_batches(3, 9, seed=2, padding=2)]


@pytest.fixture(scope="module")
def graph(exported) -> SitedGraph:
    model = to_canonical_form(read_graph(exported("bert")))
    name_inputs(model, {})
    name_outputs(model, "text-classification")
    return mark_sites(model, find_roles(model))


@pytest.fixture(scope="module")
def ours(make_model):
    """Return the same model in PyTorch, with quantizers."""
    model = make_model(
        "bert",
        transformers.AutoModelForSequenceClassification,
        num_hidden_layers=2,
        vocab_size=128,
    )
    family = family_of("bert")
    sited = insert_quantizers_(model, family)
    return sited, GraphBody(model, task="text-classification", head=None, mask=family.mask)


def by_pytorch(
    ours, smoothing: Smoothing | None = None, *, clips_residuals: bool = False
) -> Calibration:
    sited, body = ours
    return calibrate(
        sited,
        lambda inputs: body(**inputs),
        BATCHES,
        sites=[site.name for site in sited.sites if site.kind == "activation"],
        calibrator=Max(),
        smoothing=smoothing,
        clips_residuals=clips_residuals,
    )


def by_graph(
    graph: SitedGraph,
    path,
    batches=BATCHES,
    smoothing: Smoothing | None = None,
    clips_residuals: bool = False,
    quantizer_options: QuantizerOptions | None = None,
) -> Calibration:
    sites = [site for site in graph.sites if site.kind == "activation"]
    observed = ObservedGraph(graph, path / "observed.onnx", sites=[site.name for site in sites])
    plan = CalibrationPlan(
        sites=sites,
        all_sites=graph.sites,
        weights={name: torch.from_numpy(weight) for name, weight in graph.weights.items()},
        calibrator=Max(),
        smoothing=smoothing,
        clips_residuals=clips_residuals,
        quantizer_options=quantizer_options or QuantizerOptions(),
    )
    return run_passes(lambda observer, scales: observed.run(batches, observer, scales), plan)


def assert_same(found: Calibration, expected: Calibration) -> None:
    expected = dataclasses.replace(
        expected,
        ranges={name.removeprefix("bert."): each for name, each in expected.ranges.items()},
        scales={name.removeprefix("bert."): each for name, each in expected.scales.items()},
    )
    assert set(found.ranges) == set(expected.ranges)
    for name, each in expected.ranges.items():
        for field in dataclasses.fields(each):
            wanted = getattr(each, field.name)
            np.testing.assert_allclose(
                getattr(found.ranges[name], field.name), wanted, rtol=1e-4, atol=1e-6, err_msg=name
            )
    assert set(found.scales) == set(expected.scales)
    for name, scale in expected.scales.items():
        torch.testing.assert_close(found.scales[name], scale, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("smoothing", [None, WIDE_INPUTS], ids=["plain", "smooth"])
def test_ranges_and_scales_are_those_of_pytorch(graph, ours, tmp_path, smoothing) -> None:
    expected = by_pytorch(ours, smoothing)
    assert (smoothing is None) == (not expected.scales)
    assert_same(by_graph(graph, tmp_path, smoothing=smoothing), expected)


def test_residual_ranges_are_clipped_as_in_pytorch(graph, ours, tmp_path) -> None:
    found = by_graph(graph, tmp_path, clips_residuals=True)
    assert_same(found, by_pytorch(ours, clips_residuals=True))


def test_query_key_and_value_share_ranges_and_weights_with_smoothing_too(graph, tmp_path) -> None:
    options = QuantizerOptions(fuse_qkv=True, quant_per_tensor=True)
    smoothing = build_recipe("full-smoothed").smoothing
    found = by_graph(graph, tmp_path, smoothing=smoothing, quantizer_options=options)
    apart = by_graph(graph, tmp_path, smoothing=smoothing)
    for layer in range(2):
        base = f"encoder.layer.{layer}.attention.self"
        names = [f"{base}.matmul_{letter}_input_quantizer" for letter in "qkv"]
        own = [apart.ranges[name] for name in names]
        assert len({(each.low, each.high) for each in own}) == 3
        for name in names:
            assert found.ranges[name].low == min(each.low for each in own)
            assert found.ranges[name].high == max(each.high for each in own)
        largest = max(
            (torch.from_numpy(graph.weights[name]) * (1 / found.scales[name])).abs().max()
            for name in (f"{base}.{part}._input_quantizer" for part in ("query", "key", "value"))
        )
        for part in ("query", "key", "value"):
            assert found.weight_amax[f"{base}.{part}._weight_quantizer"] == largest


def test_padding_is_not_observed(graph, tmp_path) -> None:
    longer = []
    for batch in BATCHES:
        inputs = {name: np.pad(array, ((0, 0), (0, 7))) for name, array in batch.inputs.items()}
        inputs["input_ids"][:, -7:] = 99  # would be seen if it were text
        longer.append(Batch(indices=batch.indices, inputs=inputs))
    assert_same(by_graph(graph, tmp_path, longer), by_graph(graph, tmp_path))


@pytest.mark.parametrize("elements", [1, 3000])
def test_ranges_do_not_depend_on_the_size_of_parts(graph, tmp_path, monkeypatch, elements) -> None:
    expected = by_graph(graph, tmp_path, smoothing=WIDE_INPUTS)
    monkeypatch.setattr(observed_graph, "_ELEMENTS_AT_ONCE", elements)
    assert_same(by_graph(graph, tmp_path, smoothing=WIDE_INPUTS), expected)


def test_a_batch_advances_once_however_many_parts_it_has(graph, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(observed_graph, "_ELEMENTS_AT_ONCE", 1)
    names = [site.name for site in graph.sites]
    advanced: list[int] = []
    rows: list[int] = []
    ObservedGraph(graph, tmp_path / "observed.onnx", sites=names).run(
        BATCHES,
        Seen(start_batch=lambda mask: rows.append(len(mask))),
        {},
        lambda: advanced.append(1),
    )
    assert len(advanced) == len(BATCHES)
    assert sum(rows) == sum(len(batch.indices) for batch in BATCHES)


def test_masks_and_values_come_in_pairs_and_in_the_order_of_the_texts(graph, tmp_path) -> None:
    # The engine is a part ahead of what is looked at.
    name = "encoder.layer.0.intermediate.dense._input_quantizer"
    order: list[tuple[str, int]] = []
    ObservedGraph(graph, tmp_path / "observed.onnx", sites=[name]).run(
        BATCHES,
        Seen(
            start_batch=lambda mask: order.append(("mask", mask.numel())),
            observe=lambda site, x: (
                order.append(("x", x[..., 0].numel())) if site.name == name else None
            ),
        ),
        {},
    )
    assert [what for what, _ in order] == ["mask", "x"] * (len(order) // 2)
    sizes = [size for _, size in order]
    assert sizes[::2] == sizes[1::2]
    assert sum(sizes[::2]) == sum(batch.inputs["attention_mask"].size for batch in BATCHES)


def test_an_error_of_the_engine_is_raised(graph, tmp_path) -> None:
    observed = ObservedGraph(graph, tmp_path / "observed.onnx", sites=[])
    broken = {**BATCHES[0].inputs, "input_ids": BATCHES[0].inputs["input_ids"] + 10**6}
    with pytest.raises(Exception, match="`input_ids` has the value 10000"):
        observed.run([Batch(inputs=broken, indices=(0,))], Seen(), {})


def test_other_sites_are_not_observed(graph, tmp_path) -> None:
    wanted = "encoder.layer.0.intermediate.dense._input_quantizer"
    seen: set[str] = set()
    ObservedGraph(graph, tmp_path / "observed.onnx", sites=[wanted]).run(
        BATCHES, Seen(observe=lambda site, x: seen.add(site.name)), {}
    )
    assert wanted in seen
    others = {name for name in seen if not name.endswith(".add_residual_input_quantizer")}
    assert others <= {wanted}


def test_the_observer_gets_the_input_of_a_smoothed_site_times_its_scale(graph, tmp_path) -> None:
    name = "encoder.layer.0.intermediate.dense._input_quantizer"
    scale = torch.linspace(0.5, 2, 32)
    shown = []
    for scales in ({}, {name: scale}):
        values = []
        ObservedGraph(graph, tmp_path / "observed.onnx", sites=[name]).run(
            BATCHES[:1],
            Seen(
                observe=lambda site, x, values=values: (
                    values.append(x) if site.name == name else None
                )
            ),
            scales,
        )
        shown.append(torch.cat(values))
    torch.testing.assert_close(shown[1], shown[0] * scale)


def test_flat_states_get_their_batch_axis() -> None:
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    made = observed_graph._as_states(values, torch.ones((2, 3)))
    assert made.shape == (2, 3, 4)
    np.testing.assert_array_equal(made.numpy().reshape(6, 4), values)
