"""A calibration layer by layer finds what one of the whole model finds, bit for bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from qdqbert.calibration import encoder_run
from qdqbert.calibration.calibrate import as_tensors, count_passes, run_passes
from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.encoder_run import EncoderRun
from qdqbert.calibration.passes import CalibrationPlan, Run
from qdqbert.calibration.reference.sited_encoder import SitedEncoder
from qdqbert.calibration.reference.sited_model import linear_weights
from qdqbert.common.errors import CalibrationError
from qdqbert.graphs.of_checkpoint import encoder_of
from qdqbert.quantization.numerics.ranges import Percentile
from qdqbert.quantization.recipes import WIDE_INPUTS, QuantizerOptions
from qdqbert.quantization.spec import Smoothing

FAMILIES = ("bert", "deberta-v2", "distilbert", "modernbert", "mpnet")
FUSED = QuantizerOptions(fuse_qkv=True, quant_per_tensor=True)


def encoder_run_of(each, **settings) -> EncoderRun:
    encoder = SitedEncoder(encoder_of(each.checkpoint), ("layer", "table"))
    return EncoderRun(encoder, as_tensors(each.batches), **settings)


def plan_of(each, recipe: str, *, smooths: bool, **settings) -> CalibrationPlan:
    """Return a plan like that of `quantize`, for two targets of which one may not smooth."""
    encoder = SitedEncoder(encoder_of(each.checkpoint), ("layer", "table"))
    plans = [each.plan(target, recipe) for target in ("portable", "tensorrt")]
    wanted = frozenset().union(*(plan.activations for plan in plans))
    rounded = [plan.rounded_weights for plan in plans]
    return CalibrationPlan(
        **{
            "sites": [site for site in encoder.sited.sites if site.name in wanted],
            "all_sites": encoder.sited.sites,
            "weights": linear_weights(encoder.sited),
            "calibrator": Percentile(99.9),
            "smoothing": WIDE_INPUTS if smooths else None,
            "unsmoothed_sites": wanted,
            "clips_residuals": recipe == "full",
            "corrects_biases": True,
            "rounded_weights": rounded[0],
            "unsmoothed_rounded_weights": rounded[1] if smooths else frozenset(),
            **settings,
        }
    )


def whole(run: EncoderRun) -> Run:
    return lambda observer, scales: run(observer, scales)


def assert_equal(made: CalibrationResult, expected: CalibrationResult) -> None:
    assert list(made.ranges.items()) == list(expected.ranges.items())
    for field in ("scales", "weight_amax", "means", "roundings"):
        mine, theirs = getattr(made, field), getattr(expected, field)
        assert mine.keys() == theirs.keys(), field
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), field
    assert (made.without_smoothing is None) == (expected.without_smoothing is None)
    if made.without_smoothing is not None:
        assert_equal(made.without_smoothing, expected.without_smoothing)


@pytest.mark.parametrize("smooths", [False, True], ids=["plain", "smoothed"])
@pytest.mark.parametrize("recipe", ["full", "linear"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usual("bert-full-*", "deberta-v2-full-smoothed", "modernbert-linear-*")
def test_layers_give_what_the_whole_model_gives(prepared, family, recipe, smooths) -> None:
    each = prepared(family)
    plan = plan_of(each, recipe, smooths=smooths)
    run = encoder_run_of(each)
    assert any(0 in batch.inputs["attention_mask"] for batch in each.batches)
    assert len(run.parts(plan)) == len(each.layers)
    made = run_passes(run, plan)
    assert made.roundings
    assert made.means
    assert bool(made.scales) is smooths
    assert_equal(made, run_passes(whole(run), plan))


@pytest.mark.parametrize("recorded", [0, 200_000])
def test_batches_that_are_not_recorded_run_again(prepared, monkeypatch, recorded) -> None:
    each = prepared("bert")
    plan = plan_of(each, "full", smooths=True)
    run = encoder_run_of(each)
    expected = run_passes(whole(run), plan)
    calls = []
    run_layer = SitedEncoder.run_layer

    def counted(self, *arguments):
        calls.append(arguments)
        return run_layer(self, *arguments)

    monkeypatch.setattr(SitedEncoder, "run_layer", counted)
    monkeypatch.setattr(encoder_run, "_RECORDED_BYTES", recorded)
    assert_equal(run_passes(run, plan), expected)
    once = len(each.layers) * len(each.batches)
    assert len(calls) == 3 * once if recorded == 0 else once < len(calls) < 3 * once


def test_shared_ranges_are_those_of_the_whole_model(prepared) -> None:
    each = prepared("bert")
    plan = plan_of(each, "full", smooths=True, quantizer_options=FUSED)
    run = encoder_run_of(each)
    made = run_passes(run, plan)
    assert made.weight_amax
    assert_equal(made, run_passes(whole(run), plan))


def test_layers_without_wanted_sites_run_too(prepared) -> None:
    each = prepared("bert")
    plan = plan_of(each, "full", smooths=True)
    run = encoder_run_of(each)
    expected = run_passes(run, plan)
    names = run.parts(plan)[1]
    last = plan_of(
        each, "full", smooths=True, sites=[site for site in plan.sites if site.name in names]
    )
    made = run_passes(run, last)
    assert made.ranges == {name: each for name, each in expected.ranges.items() if name in names}
    assert made.roundings.keys() < expected.roundings.keys()
    first = plan_of(
        each, "full", smooths=True, sites=[site for site in plan.sites if site.name not in names]
    )
    assert len(run.parts(first)) == 1


def test_only_some_layers_are_smoothed(prepared) -> None:
    each = prepared("bert")
    plan = plan_of(each, "linear", smooths=True)
    run = encoder_run_of(each)
    first, second = run.parts(plan)
    smoothing = Smoothing(sites=("encoder.layer.1.*",), alpha=0.5)
    plan = plan_of(each, "linear", smooths=True, smoothing=smoothing)
    made = run_passes(run, plan)
    assert made.scales.keys() <= second
    assert made.without_smoothing is not None
    assert any(name.startswith("encoder.layer.0") for name, _ in made.without_smoothing.roundings)
    assert_equal(made, run_passes(whole(run), plan))
    assert [len(plan.passes(names)) for names in (first, second)] == [2, 3]


def test_more_data_than_fits_runs_through_the_whole_model(prepared, monkeypatch) -> None:
    each = prepared("mpnet")
    plan = plan_of(each, "linear", smooths=True)
    run = encoder_run_of(each)
    expected = run_passes(run, plan)
    monkeypatch.setattr(encoder_run, "_STATE_BYTES", 1000)
    assert [*map(frozenset, run.parts(plan))] == [plan.names]
    assert_equal(run_passes(run, plan), expected)


@pytest.mark.parametrize("runs", ["all layers", "the first layer", "the whole model"])
def test_the_outputs_are_those_of_the_model_in_float(prepared, monkeypatch, runs) -> None:
    each = prepared("sentence" if runs == "all layers" else "bert")
    plan = plan_of(each, "full", smooths=True)
    if runs == "the first layer":
        names = encoder_run_of(each).parts(plan)[0]
        sites = [site for site in plan.sites if site.name in names]
        plan = plan_of(each, "full", smooths=True, sites=sites)
    elif runs == "the whole model":
        monkeypatch.setattr(encoder_run, "_STATE_BYTES", 1000)
    shown: dict[int, tuple[torch.Tensor, ...]] = {}
    run = encoder_run_of(each, on_outputs=shown.__setitem__)
    run_passes(run, plan)
    with torch.no_grad():
        expected = [run._encoder(**inputs) for inputs in as_tensors(each.batches)]
    assert [*shown] == [*range(len(expected))]
    for made, wanted in zip(shown.values(), expected, strict=True):
        assert len(made) == len(wanted)
        assert all(map(torch.equal, made, wanted))


def test_progress_reaches_its_total(prepared) -> None:
    each = prepared("bert")
    done: list[int] = []
    run = encoder_run_of(each, advance=lambda: done.append(1))
    plan = plan_of(each, "full", smooths=True, on_rounded=lambda: done.append(1))
    run_passes(run, plan)
    assert count_passes(run, plan) == 3 * len(each.layers)
    assert len(done) == count_passes(run, plan) * len(each.batches) + plan.rounded_inputs


def test_a_value_that_is_not_finite_is_named(prepared) -> None:
    each = prepared("bert")
    run, plan = encoder_run_of(each), plan_of(each, "full", smooths=True)
    name = "encoder.layer.1.attention.self.matmul_q_input_quantizer"
    weights = linear_weights(run._encoder.sited)
    weight = weights["encoder.layer.1.attention.self.query._input_quantizer"]
    kept = weight.clone()
    try:
        weight[0, 0] = torch.inf
        with pytest.raises(CalibrationError, match=name):
            run_passes(run, plan)
    finally:
        weight.copy_(kept)


def test_data_is_needed(prepared) -> None:
    each = prepared("bert")
    run = EncoderRun(encoder_run_of(each)._encoder, [])
    with pytest.raises(CalibrationError, match="`batches` is empty"):
        run_passes(run, plan_of(each, "full", smooths=True))


class Recorder:
    """Takes the mask of each batch, and counts the values that are shown."""

    def __init__(self) -> None:
        self.masks: list[torch.Tensor] = []
        self.shown = 0

    def start_batch(self, mask: torch.Tensor) -> None:
        self.masks.append(mask)

    def observe(self, site, x) -> None:
        self.shown += 1


@pytest.mark.parametrize("expansion", [None, 7])
def test_tokens_that_expand_queries_count_where_no_token_attends_to_them(
    prepared, expansion
) -> None:
    each = prepared("bert")
    model = dataclasses.replace(encoder_of(each.checkpoint), expansion_id=expansion)
    ids = torch.tensor([[2, 40, 3, 7, 7, 0], [2, 41, 42, 43, 3, 0]])
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]])
    encoder = SitedEncoder(model, ("layer", "table"))
    run = EncoderRun(encoder, [{"input_ids": ids, "attention_mask": mask}])
    expected = mask.clone()
    if expansion is not None:
        expected[0, 3:5] = 1
    at_once, divided = Recorder(), Recorder()
    run(at_once, {})
    for stage in run.stages(plan_of(each, "linear", smooths=False)):
        stage.run(divided, {})
    assert at_once.shown
    assert divided.shown
    assert len(divided.masks) == len(each.layers)
    for found in (*at_once.masks, *divided.masks):
        assert torch.equal(found, expected)
