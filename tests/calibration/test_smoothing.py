from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel

from calibrated import calibrate
from qdqbert.calibration.reference.sited_model import SitedModel
from qdqbert.calibration.smoothing import ChannelObserver, choose_pre_quant_scales
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.encoders.families import quantized_family
from qdqbert.quantization.numerics.channel_scales import least_noise_scale
from qdqbert.quantization.numerics.ranges import Max
from qdqbert.quantization.spec import Site, Smoothing
from qdqbert.training.insert.sited import insert_quantizers_

MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
ATTENTION = "encoder.layer.0.attention.self"
QKV = [f"{ATTENTION}.{name}._input_quantizer" for name in ("query", "key", "value")]
INTERMEDIATE = "encoder.layer.0.intermediate.dense._input_quantizer"
SMOOTHING = Smoothing(
    sites=("*.query._input_q*", "*.key._i*", "*.value._i*", "*intermediate*"), alpha=0.5
)


def site(name: str) -> Site:
    return Site(name=name, kind="activation", sequence_axes=(1,))


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hidden(seed: int = 0) -> Tensor:
    """`(batch, seq, in)` with channels between 1 and 50 wide."""
    return randn(*MASK.shape, 6, seed=seed) * torch.tensor([1.0, 50.0, 1.0, 7.0, 2.0, 3.0])


def collect(x: Tensor, *names: str) -> ChannelObserver:
    channels = ChannelObserver(names)
    channels.start_batch(torch.ones(x.shape[:2]))
    for name in names:
        channels.observe(site(name), x)
    return channels


def scales_at(
    alpha: float, channels: ChannelObserver, weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the scales with one alpha for all sites."""
    return choose_pre_quant_scales(channels, weights, alphas=dict.fromkeys(weights, alpha))


# Largest magnitudes


def test_largest_magnitudes_of_channels_by_hand() -> None:
    channels = ChannelObserver(["a"])
    for x in ([[[1.0, -5.0], [-3.0, 2.0]]], [[[2.0, 0.0], [0.0, -7.0]]]):
        channels.start_batch(torch.ones(1, 2))
        channels.observe(site("a"), torch.tensor(x))
    assert channels.statistics("a").amax.tolist() == [3.0, 7.0]


def test_statistics_are_numpys_of_all_tokens_of_all_batches() -> None:
    channels = ChannelObserver(["a"])
    batches = [hidden(seed) + 100 * seed for seed in range(3)]
    for x in batches:
        channels.start_batch(MASK)
        channels.observe(site("a"), x)
    tokens = torch.cat([x[MASK.bool()] for x in batches]).double().numpy()
    found = channels.statistics("a")
    np.testing.assert_array_equal(found.low, tokens.min(axis=0))
    np.testing.assert_array_equal(found.high, tokens.max(axis=0))
    # Squares are rounded to float32.
    np.testing.assert_allclose(found.variance, tokens.var(axis=0), rtol=1e-5)


def test_observers_of_parts_find_what_one_finds() -> None:
    names = ("query", "key")
    parts = [hidden(seed) for seed in range(3)]
    apart = ChannelObserver(names)
    for x in parts:
        apart.absorb_(collect(x, *names))
    together = ChannelObserver(names)
    for x in parts:
        together.start_batch(torch.ones(x.shape[:2]))
        for name in names:
            together.observe(site(name), x)
    assert apart.groups == together.groups
    assert torch.equal(apart.ends["key"], together.ends["key"])
    torch.testing.assert_close(apart.totals["key"], together.totals["key"], rtol=1e-14, atol=0)


def test_sites_that_read_one_tensor_are_a_group() -> None:
    channels = ChannelObserver(["query", "key", "value", "other"])
    for seed in range(3):
        x = hidden(seed)
        channels.start_batch(MASK)
        for name in ("query", "key", "value"):
            channels.observe(site(name), x)
        channels.observe(site("other"), x.clone())
    assert channels.groups == {"query": ["query", "key", "value"], "other": ["other"]}
    for name in ("key", "value", "other"):
        assert torch.equal(channels.ends[name], channels.ends["query"])
        assert torch.equal(channels.totals[name], channels.totals["query"])


# Scales


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.7, 1.0], ids=str)
def test_scale_is_the_formulas_in_numpy(alpha) -> None:
    x, weight = hidden(), randn(5, 6, seed=1)
    scale = scales_at(alpha, collect(x, "a"), {"a": weight})["a"]
    amax_x = np.abs(x.double().numpy()).max(axis=(0, 1))
    amax_w = np.abs(weight.double().numpy()).max(axis=0)
    s = amax_x**alpha / amax_w ** (1 - alpha)  # equation 4
    expected = 1 / s / np.exp(np.mean(np.log(1 / s)))  # geometric mean 1
    # A dozen float32 roundings, some of logarithms up to 4 in magnitude.
    np.testing.assert_allclose(scale.numpy(), expected, rtol=5e-6)
    assert scale.shape == (6,)
    assert scale.dtype == torch.float32


def test_linear_layers_that_read_one_tensor_share_a_vector() -> None:
    names = ("query", "key", "value")
    weights = {name: randn(5, 6, seed=seed) for seed, name in enumerate(names)}
    channels = collect(hidden(), *names)
    scales = scales_at(0.5, channels, weights)
    assert scales["query"] is scales["key"] is scales["value"]
    # The column's largest weight in any of the three decides.
    stacked = torch.cat(list(weights.values()))
    alone = scales_at(0.5, collect(hidden(), "all"), {"all": stacked})
    assert torch.equal(scales["query"], alone["all"])


def test_without_a_weight_channels_come_out_alike_wide() -> None:
    x = hidden()
    # Other inputs of the linear layers do not matter.
    channels = collect(x, "query", "add")
    scales = scales_at(0.5, channels, {"query": randn(5, 6)})
    amax = np.abs(x.double().numpy()).max(axis=(0, 1))
    expected = np.exp(np.log(amax).mean()) / amax  # geometric mean 1
    np.testing.assert_allclose(scales["add"].numpy(), expected, rtol=5e-6)
    alone = scales_at(0.5, collect(x, "query"), {"query": randn(5, 6)})
    assert torch.equal(scales["query"], alone["query"])


def test_without_a_weight_a_channel_that_hardly_moved_keeps_a_hundredth_of_the_mean() -> None:
    x = torch.tensor([[[3.0, 1e-9, -1.0], [-1.0, 0.0, 2.0]]])
    scale = scales_at(0.5, collect(x, "add"), {})["add"].double()
    floor = (3 + 2) / 3 / 100
    np.testing.assert_allclose(scale / scale[0], [1, 3 / floor, 3 / 2], rtol=5e-6)


def test_dead_channel_and_dead_column_get_a_finite_scale() -> None:
    x, weight = hidden(), randn(5, 6)
    x[..., 0] = 0.0
    weight[:, 1] = 0.0
    scale = scales_at(0.5, collect(x, "a"), {"a": weight})["a"]
    assert bool(torch.isfinite(scale).all())
    assert bool((scale > 0).all())


@pytest.mark.parametrize("search", [0.25, 1.0], ids=str)
def test_search_moves_scales_towards_those_with_the_least_noise(search) -> None:
    channels, weight = collect(hidden(), "a"), randn(5, 6)
    formula = scales_at(0.5, channels, {"a": weight})["a"]
    best = least_noise_scale(formula, channels.statistics("a"), weight)
    found = choose_pre_quant_scales(channels, {"a": weight}, alphas={"a": 0.5}, search=search)["a"]
    # Exp and log round, twice.
    expected = formula ** (1 - search) * best**search
    torch.testing.assert_close(found, expected, rtol=5e-6, atol=0)
    assert not torch.allclose(formula, best, rtol=1e-2)


def test_scales_of_residual_adds_are_not_searched() -> None:
    channels = collect(hidden(), "add")
    formula = choose_pre_quant_scales(channels, {}, alphas={})
    searched = choose_pre_quant_scales(channels, {}, alphas={}, search=1.0)
    assert torch.equal(formula["add"], searched["add"])


# In a calibration


@pytest.fixture(scope="module")
def sited() -> SitedModel:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
    )
    return insert_quantizers_(BertModel(config), quantized_family("bert"))


BATCHES = [
    Batch(
        indices=(0, 1),
        inputs={
            "input_ids": np.random.default_rng(seed).integers(1, 30, (2, length)),
            "attention_mask": np.array([[1] * length, [1] * (length - 2) + [0] * 2]),
        },
    )
    for seed, length in ((0, 5), (1, 9))
]


def inputs_of(sited: SitedModel, path: str) -> Tensor:
    """What a linear reads at text positions of all batches, by a hook of torch's own."""
    seen: list[Tensor] = []
    handle = sited.model.get_submodule(path).register_forward_pre_hook(
        lambda _, args: seen.append(args[0])
    )
    with torch.inference_mode():
        for batch in BATCHES:
            inputs = {name: torch.from_numpy(array) for name, array in batch.inputs.items()}
            sited.model(**inputs)
            seen[-1] = seen[-1][inputs["attention_mask"].bool()]
    handle.remove()
    return torch.cat(seen)


def test_ranges_are_those_of_what_is_quantized_after_scaling(sited) -> None:
    ticks: list[None] = []
    calibration = calibrate(
        sited,
        lambda inputs: sited.model(**inputs),
        BATCHES,
        sites=[*QKV, INTERMEDIATE, f"{ATTENTION}.matmul_a_input_quantizer"],
        calibrator=Max(),
        smoothing=SMOOTHING,
        advance=lambda: ticks.append(None),
    )
    assert len(ticks) == 2 * len(BATCHES)
    assert set(calibration.scales) == {*QKV, INTERMEDIATE}
    for name in (*QKV, INTERMEDIATE):
        x = inputs_of(sited, name.rpartition(".")[0])
        scaled = x * calibration.scales[name]
        chosen = calibration.ranges[name]
        assert (chosen.low, chosen.high) == (float(scaled.min()), float(scaled.max()))
        assert chosen.amax == float(scaled.abs().max())
    assert calibration.scales[QKV[0]] is calibration.scales[QKV[2]]
    assert calibration.ranges[QKV[0]] == calibration.ranges[QKV[1]]


def test_each_source_is_smoothed_with_its_own_alpha(sited) -> None:
    output = "encoder.layer.0.output.dense._input_quantizer"
    calibration = calibrate(
        sited,
        lambda inputs: sited.model(**inputs),
        BATCHES,
        sites=[INTERMEDIATE, output],
        calibrator=Max(),
        smoothing=Smoothing(sites=("*",), alpha=0.3, alphas=(("activation", 0.9),)),
    )
    for name, alpha in ((INTERMEDIATE, 0.3), (output, 0.9)):
        path = name.rpartition(".")[0]
        weight = sited.model.get_submodule(path).weight.detach().double().numpy()
        amax_w = np.abs(weight).max(axis=0)
        amax_x = np.abs(inputs_of(sited, path).double().numpy()).max(axis=0)
        s = amax_x**alpha / amax_w ** (1 - alpha)
        expected = 1 / s / np.exp(np.mean(np.log(1 / s)))
        # As above.
        np.testing.assert_allclose(calibration.scales[name].numpy(), expected, rtol=5e-6)


def test_model_that_fails_in_calibration_is_as_it_was(sited) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        calibrate(sited, fail, BATCHES, sites=[INTERMEDIATE], calibrator=Max())
    assert all(quantizer.action is None for quantizer in sited.quantizers.values())
