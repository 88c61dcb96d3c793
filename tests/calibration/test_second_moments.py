from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from calibrated import calibrate
from qdqbert.calibration import passes
from qdqbert.calibration.reference.sited_model import linear_weights
from qdqbert.calibration.second_moments import SecondMomentObserver, moments_of
from qdqbert.quantization.numerics.affine import dequantize, quantize_weight
from qdqbert.quantization.numerics.ranges import Max
from qdqbert.quantization.numerics.weight_rounding import rounding_of
from qdqbert.quantization.spec import Range, Site, weight_site_of

RANGE = Range(amax=9.0, low=-6.0, high=9.0)


def site(name: str, *, is_own_text: bool = True) -> Site:
    return Site(name=name, kind="activation", sequence_axes=(1,) if is_own_text else ())


def states(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*shape, generator=generator) + torch.arange(shape[-1]) / 2


def codes_of(x: torch.Tensor) -> np.ndarray:
    """Return 8-bit codes of the range, `(tokens, channels)`."""
    scale = np.float32(np.float32(15) / np.float32(255))
    return np.clip(np.rint(x.numpy() / scale) + 102, 0, 255).reshape(-1, x.shape[-1])


def observed(*batches: tuple[torch.Tensor, torch.Tensor]) -> SecondMomentObserver:
    observer = SecondMomentObserver({"a": RANGE})
    for mask, x in batches:
        observer.start_batch(mask)
        observer.observe(site("a"), x)
    return observer


def test_moments_are_the_covariance_of_the_codes_of_text() -> None:
    batches = []
    for seed in range(3):
        x = states(seed, 7, 11, 6)
        # Values beyond the range are cut off, as they are in INT8.
        x[0, 0, 0] = 50.0
        batches.append((torch.from_numpy(np.arange(77).reshape(7, 11) % 5 != 0), x))
    expected = np.concatenate([codes_of(x[mask]) for mask, x in batches])
    found = moments_of(*observed(*batches).take_totals("a"))
    np.testing.assert_allclose(
        found.numpy(), np.cov(expected, rowvar=False, bias=True), rtol=1e-10, atol=1e-10
    )


def test_sums_are_exact_however_the_data_is_divided() -> None:
    # Codes of the largest magnitude, on more tokens than one sum in float32 or int32 is exact for.
    x = torch.where(torch.rand(2200, 64, 4) < 0.999, -9.0, states(0, 2200, 64, 4))
    mask = torch.ones(2200, 64)
    whole = observed((mask, x))
    parts = [observed((mask[i::7], x[i::7])) for i in range(7)]
    parts[0].start_batch(mask)
    merged = pickle.loads(pickle.dumps(parts[0]))
    for part in parts[1:]:
        merged.absorb_(part)
    codes = np.pad(codes_of(x) - 128, ((0, 0), (0, 1)), constant_values=1).astype(np.int64)
    # -9 is cut off at the lowest code.
    assert (codes.T @ codes).max() > 2**31
    assert merged.groups == whole.groups
    for each in (whole, merged):
        products, sums = (total.numpy() for total in each.take_totals("a"))
        np.testing.assert_array_equal(products, (codes.T @ codes)[:-1, :-1])
        np.testing.assert_array_equal(sums, (codes.T @ codes)[-1])


def test_products_of_many_channels_are_those_of_all_pairs() -> None:
    x = states(0, 6, 20, 1030) / 100
    codes = codes_of(x).astype(np.int64) - 128
    products, sums = observed((torch.ones(6, 20), x)).take_totals("a")
    np.testing.assert_array_equal(products.numpy(), codes.T @ codes)
    np.testing.assert_array_equal(sums.numpy(), [*codes.sum(axis=0), 120])


def test_sites_that_read_one_tensor_share_its_sums() -> None:
    observer = SecondMomentObserver(dict.fromkeys(("query", "key", "out"), RANGE))
    for seed in range(2):
        x, y = states(seed, 2, 5, 3), states(seed + 9, 2, 5, 4)
        observer.start_batch(torch.ones(2, 5))
        for name, tensor in (("query", x), ("other", x), ("key", x), ("out", y)):
            observer.observe(site(name), tensor)
    assert observer.groups == {"query": ["query", "key"], "out": ["out"]}
    assert [float(observer.take_totals(name)[1][-1]) for name in observer.groups] == [20, 20]


def test_long_texts_are_sampled_evenly() -> None:
    x = states(0, 3, 200, 4)
    mask = torch.arange(200).expand(3, 200) < torch.tensor([[200], [50], [9]])
    kept = codes_of(x[:, ::4][mask[:, ::4]])
    np.testing.assert_allclose(
        moments_of(*observed((mask, x)).take_totals("a")).numpy(),
        np.cov(kept, rowvar=False, bias=True),
        rtol=1e-10,
    )


def test_tokens_of_another_text_count_whatever_the_mask() -> None:
    observer, x = SecondMomentObserver({"a": RANGE}), states(0, 2, 7, 3)
    observer.start_batch(torch.zeros(2, 4))
    observer.observe(site("a", is_own_text=False), x)
    assert float(observer.take_totals("a")[1][-1]) == 14


def calibrated(each, plan, **settings):
    return calibrate(
        each.sited,
        lambda inputs: each.body(**inputs),
        each.batches,
        sites=sorted(plan.activations),
        calibrator=Max(),
        **settings,
    )


@pytest.mark.parametrize("smooths", [False, True], ids=["plain", "smoothed"])
def test_rounding_moves_the_outputs_of_linear_layers_less(prepared, smooths) -> None:
    bert = prepared("bert")
    plan = bert.plan("portable", "linear")
    found = calibrated(
        bert,
        plan,
        smoothing=plan.recipe.smoothing if smooths else None,
        rounded_weights=plan.rounded_weights,
    )
    assert found.roundings.keys() == plan.rounded_weights
    inputs: dict[str, list[torch.Tensor]] = {name: [] for name in plan.activations}
    masks = []
    hooks = [
        bert.checkpoint.model.get_submodule(name.rpartition(".")[0]).register_forward_pre_hook(
            lambda module, args, name=name: inputs[name].append(args[0][masks[-1]])
        )
        for name in inputs
    ]
    try:
        with torch.no_grad():
            for batch in bert.batches:
                masks.append(torch.from_numpy(batch.inputs["attention_mask"]) == 1)
                bert.body(**{key: torch.from_numpy(x) for key, x in batch.inputs.items()})
    finally:
        for hook in hooks:
            hook.remove()
    ratios = []
    for name, weight in linear_weights(bert.sited).items():
        x = torch.cat(inputs[name]).double()
        scale = found.scales.get(name, torch.ones(()))
        scaled, site_name = weight * (1 / scale), weight_site_of(name)
        spec = plan.specs[site_name]
        rounds_up = rounding_of(found.roundings, site_name, weight.shape[1], plan.specs)
        errors = []
        for each in (rounds_up, None):
            codes, parameters = quantize_weight(scaled, spec, None, each)
            difference = (scaled - dequantize(codes, parameters, spec)).double() * scale
            outputs = x @ difference.T
            errors.append((outputs - outputs.mean(dim=0)).square().mean())
        ratios.append(float(errors[0] / errors[1]))
    assert max(ratios) < 1
    assert np.mean(ratios) < 0.8


def test_recipes_with_and_without_smoothing_get_roundings_of_their_own(prepared) -> None:
    bert = prepared("bert")
    plan = bert.plan("portable", "linear")
    free = bert.plan("tensorrt", "linear").rounded_weights
    both = calibrated(
        bert,
        plan,
        smoothing=plan.recipe.smoothing,
        unsmoothed_sites=plan.activations,
        rounded_weights=plan.rounded_weights,
        unsmoothed_rounded_weights=free,
    )
    assert both.roundings.keys() == plan.rounded_weights
    plain = both.for_recipe(dataclasses.replace(plan.recipe, smoothing=None))
    assert plain.roundings.keys() == free
    alone = calibrated(bert, plan, rounded_weights=free)
    inputs = {name.rpartition(".")[0] for name in both.scales}
    for (name, spec), bits in plain.roundings.items():
        # Codes of smoothed inputs differ a little from those of the same inputs without a scale.
        differing = torch.bitwise_xor(bits, alone.roundings[name, spec]).count_nonzero()
        assert differing <= (0.3 * bits.numel() if name.rpartition(".")[0] in inputs else 0)


def test_moments_are_taken_in_several_passes_where_they_need_memory(prepared, monkeypatch) -> None:
    bert = prepared("bert")
    plan = bert.plan("portable", "linear")
    seen: list[list[int]] = []
    found = []
    for size in (passes._BYTES_AT_ONCE, 1):
        monkeypatch.setattr(passes, "_BYTES_AT_ONCE", size)
        seen.append([])
        found.append(
            calibrated(
                bert,
                plan,
                rounded_weights=plan.rounded_weights,
                advance=lambda: seen[-1].append(1),
            )
        )
    assert len(seen[0]) == 2 * len(bert.batches)
    assert len(seen[1]) == (1 + len(plan.rounded_weights)) * len(bert.batches)
    first, second = found
    assert first.roundings.keys() == second.roundings.keys()
    assert all(torch.equal(bits, second.roundings[key]) for key, bits in first.roundings.items())
