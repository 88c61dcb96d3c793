from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrated import calibrate
from qdqbert.calibration.bias_correction import MeanObserver
from qdqbert.quantization.numerics.ranges import Max
from qdqbert.quantization.spec import Site, is_linear_input

MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])


def site(name: str, *, is_own_text: bool = True) -> Site:
    return Site(name=name, kind="activation", sequence_axes=(1,) if is_own_text else ())


def states(seed: int, rows: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 4, 6, generator=generator) + torch.arange(6)


def test_means_are_those_of_text_in_float64() -> None:
    observer = MeanObserver(["a", "b"])
    tensors = [states(seed) for seed in range(3)]
    for x in tensors:
        observer.start_batch(MASK)
        # Query, key and value read one tensor.
        for name in ("a", "b", "c"):
            observer.observe(site(name), x)
    expected = np.concatenate([x.double().numpy()[MASK.numpy() == 1] for x in tensors]).mean(axis=0)
    found = observer.means({})
    assert found.keys() == {"a", "b"}
    for mean in found.values():
        assert mean.dtype == torch.float32
        # One rounding to float32.
        np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-7)


def test_a_scale_is_divided_out() -> None:
    x, scale = states(0), torch.tensor([0.5, 2.0, 4.0, 0.25, 1.0, 8.0])
    plain, scaled = MeanObserver(["a"]), MeanObserver(["a"])
    for observer, seen in ((plain, x), (scaled, x * scale)):
        observer.start_batch(MASK)
        observer.observe(site("a"), seen)
    # Powers of two change no digit.
    assert torch.equal(plain.means({})["a"], scaled.means({"a": scale})["a"])


def test_tokens_of_another_text_count_whatever_the_mask() -> None:
    observer, x = MeanObserver(["a"]), torch.randn(2, 7, 3)
    observer.start_batch(MASK)
    observer.observe(site("a", is_own_text=False), x)
    np.testing.assert_allclose(
        observer.means({})["a"].numpy(), x.double().numpy().mean(axis=(0, 1)), rtol=1e-6
    )


def test_two_observers_merge_to_what_one_would_have_seen() -> None:
    parts, whole = [MeanObserver(["a"]) for _ in range(2)], MeanObserver(["a"])
    for seed, part in enumerate(parts):
        for observer in (part, whole):
            observer.start_batch(MASK)
            observer.observe(site("a"), states(seed))
    parts[0].absorb_(parts[1])
    assert torch.equal(parts[0].means({})["a"], whole.means({})["a"])


@pytest.mark.parametrize("smooths", [False, True], ids=["plain", "smoothed"])
def test_calibration_keeps_the_mean_of_the_float_inputs(prepared, smooths) -> None:
    bert = prepared("bert")
    plan = bert.plan("portable", "linear")
    names = sorted(plan.activations)
    seen: dict[str, list[np.ndarray]] = {name: [] for name in names}

    def forward(inputs):
        kept.append(inputs["attention_mask"].numpy() == 1)
        return bert.body(**inputs)

    kept: list[np.ndarray] = []
    hooks = [
        bert.checkpoint.model.get_submodule(name.rpartition(".")[0]).register_forward_pre_hook(
            lambda module, args, name=name: seen[name].append(args[0].numpy()[kept[-1]])
        )
        for name in names
    ]
    try:
        found = calibrate(
            bert.sited,
            forward,
            bert.batches[:3],
            sites=names,
            calibrator=Max(),
            smoothing=plan.recipe.smoothing if smooths else None,
            corrects_biases=True,
        )
    finally:
        for hook in hooks:
            hook.remove()
    assert set(found.means) == set(names)
    assert all(is_linear_input(name) for name in names)
    for name, mean in found.means.items():
        expected = np.concatenate(seen[name]).astype(np.float64).mean(axis=0)
        # Scales are float32 factors, divided out again.
        np.testing.assert_allclose(mean.numpy(), expected, rtol=1e-5, atol=1e-6)
