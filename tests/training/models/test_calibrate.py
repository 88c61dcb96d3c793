from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

import qdqbert
from qdqbert import QuantizerOptions, TensorQuantizer
from qdqbert.calibration.statistics import calibrator_of
from qdqbert.common.errors import CalibrationError, SpecError, UnmatchedRuleError
from qdqbert.encoders.families import quantized_family
from qdqbert.quantization.numerics import histogram
from qdqbert.quantization.numerics.ranges import choose_range
from qdqbert.training.insert.sited import insert_quantizers_
from qdqbert.training.models.calibrate import count_passes

CALIBRATORS = {
    "max": QuantizerOptions(),
    "percentile": QuantizerOptions(calibrator="percentile", percentile=99.0),
    "mse": QuantizerOptions(calibrator="mse"),
    "entropy": QuantizerOptions(calibrator="entropy"),
}
# Axes of tokens, by the end of a quantizer's name; axis 1 for all others.
TOKEN_AXES = {
    "matmul_q_input_quantizer": (2,),
    "matmul_k_input_quantizer": (3,),
    "matmul_v_input_quantizer": (2,),
    "matmul_a_input_quantizer": (2, 3),
}
GELU_INPUT = "layer.0.output.dense._input_quantizer"


def quantizers_of(model: nn.Module) -> dict[str, TensorQuantizer]:
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, TensorQuantizer)
    }


def inputs_of(model: nn.Module) -> dict[str, TensorQuantizer]:
    return {
        name: each
        for name, each in quantizers_of(model).items()
        if name.endswith("_input_quantizer")
    }


def weights_of(model: nn.Module) -> dict[str, tuple[TensorQuantizer, np.ndarray]]:
    return {
        name: (each, model.get_submodule(name.rpartition(".")[0]).weight.detach().numpy())
        for name, each in quantizers_of(model).items()
        if name.endswith("_weight_quantizer")
    }


def ranges_of(model: nn.Module) -> dict[str, float]:
    return {name: float(each.amax) for name, each in inputs_of(model).items()}


def make_batches(*, padding_id: int = 0, padded: bool = True) -> list[dict[str, torch.Tensor]]:
    """Two batches of three texts, most of which end in [PAD]."""
    generator = torch.Generator().manual_seed(3)
    batches = []
    for lengths in ((9, 6, 3), (5, 7, 7)):
        longest = max(lengths)
        ids = torch.randint(5, 300, (len(lengths), longest), generator=generator)
        text = torch.arange(longest) < torch.tensor(lengths)[:, None]
        ids = torch.where(text, ids, padding_id)
        batch = {"input_ids": ids}
        if padded:
            batch["attention_mask"] = text.long()
        batches.append(batch)
    return batches


def without_padding(name: str, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    axes = TOKEN_AXES.get(name.rpartition(".")[2], (1,))
    keep = np.ones(x.shape, dtype=bool)
    for axis in axes:
        shape = [1] * x.ndim
        shape[0], shape[axis] = mask.shape
        keep &= mask.reshape(shape)
    return x[keep]


class Recording:
    """What each activation quantizer is given while a model runs, without [PAD]."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: dict[str, list[np.ndarray]] = {name: [] for name in inputs_of(model)}
        self.mask = np.ones((0, 0), dtype=bool)
        self._handles = [
            each.register_forward_pre_hook(functools.partial(self._note, name))
            for name, each in inputs_of(model).items()
        ]
        self._handles.append(model.register_forward_pre_hook(self._start, with_kwargs=True))

    def _start(self, _, args, kwargs) -> None:
        default = torch.ones_like(kwargs["input_ids"])
        self.mask = kwargs.get("attention_mask", default).bool().numpy()

    def _note(self, name, _, args) -> None:
        x = args[0].detach().numpy().copy()
        self.seen[name].append(without_padding(name, x, self.mask).ravel())

    def stop(self) -> dict[str, np.ndarray]:
        for handle in self._handles:
            handle.remove()
        return {name: np.concatenate(arrays) for name, arrays in self.seen.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_model):
    root = tmp_path_factory.mktemp("float")
    make_model("bert", transformers.AutoModelForSequenceClassification).save_pretrained(root)
    return root


@pytest.fixture
def model(folder):
    return qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)


@pytest.fixture(scope="module")
def recorded(folder):
    """A model calibrated by maxima, and what its quantizers saw meanwhile."""
    model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
    recording = Recording(model)
    qdqbert.calibrate(model, make_batches())
    return model, recording.stop()


@pytest.mark.parametrize("recipe", [None, "full", "full-smoothed"])
def test_progress_ends_where_it_was_said_to_end(folder, recipe) -> None:
    if recipe is None:
        model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
    else:
        float_class = transformers.AutoModelForSequenceClassification
        model = qdqbert.prepare(float_class.from_pretrained(folder), recipe=recipe)
    steps: list[None] = []
    qdqbert.calibrate(model, make_batches(), advance=lambda: steps.append(None))
    assert len(steps) == count_passes(model) * len(make_batches())


# Ranges of activations


def test_a_range_is_the_largest_magnitude_outside_of_padding(recorded) -> None:
    model, seen = recorded
    assert len(seen) == 28
    for name, amax in ranges_of(model).items():
        assert amax == np.abs(seen[name]).max(), name


@pytest.mark.parametrize("name", list(CALIBRATORS))
def test_each_calibrator_answers_for_what_was_seen(model, name) -> None:
    quantizer_options = CALIBRATORS[name]
    recording = Recording(model)
    qdqbert.calibrate(model, make_batches(), **quantizer_options.to_dict())
    seen = recording.stop()
    for site, amax in list(ranges_of(model).items())[::4]:  # each search takes a while
        values = torch.from_numpy(seen[site])
        expected = choose_range(histogram.summarize(values), calibrator_of(quantizer_options)).amax
        assert amax == pytest.approx(expected, rel=1e-6), site
        assert 0 < amax <= float(values.abs().max())


def test_padding_does_not_affect_ranges(folder) -> None:
    found = []
    for padding_id in (0, 77):
        model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
        found.append(ranges_of(qdqbert.calibrate(model, make_batches(padding_id=padding_id))))
    assert found[0] == found[1]


def test_without_a_mask_all_positions_count(folder) -> None:
    found = []
    for batches in (
        make_batches(padding_id=77, padded=False),
        [
            {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}
            for batch in make_batches(padding_id=77, padded=False)
        ],
        make_batches(padding_id=77),
    ):
        model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
        found.append(ranges_of(qdqbert.calibrate(model, batches)))
    assert found[0] == found[1] != found[2]


def test_batches_may_come_from_a_generator_or_a_data_loader(folder) -> None:
    found = []
    for batches in (
        make_batches(),
        (batch for batch in make_batches()),
        DataLoader(make_batches(), batch_size=None),
        [transformers.BatchEncoding(batch) for batch in make_batches()],
    ):
        model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
        found.append(ranges_of(qdqbert.calibrate(model, batches)))
    assert found[1:] == 3 * found[:1]


def test_multiple_choice_leaves_its_padding_out_too(make_model, tmp_path) -> None:
    make_model("bert", transformers.AutoModelForMultipleChoice).save_pretrained(tmp_path)
    found = []
    for padding_id in (0, 77):
        batch = make_batches(padding_id=padding_id)[0]
        choices = {name: value[:, None].repeat(1, 2, 1) for name, value in batch.items()}
        model = qdqbert.QDQBertForMultipleChoice.from_pretrained(tmp_path)
        found.append(ranges_of(qdqbert.calibrate(model, [choices])))
    assert found[0] == found[1]


# Weights


def test_a_weights_range_is_the_largest_magnitude_of_each_row(recorded) -> None:
    model, _ = recorded
    assert len(weights_of(model)) == 12
    for name, (quantizer, weight) in weights_of(model).items():
        assert quantizer.amax.shape == (weight.shape[0], 1)
        assert np.array_equal(quantizer.amax.numpy()[:, 0], np.abs(weight).max(axis=1)), name


def test_per_tensor_weights_have_one_range(model) -> None:
    qdqbert.calibrate(model, make_batches(), quant_per_tensor=True)
    for name, (quantizer, weight) in weights_of(model).items():
        assert quantizer.axis is None
        assert quantizer.amax.shape == ()
        assert float(quantizer.amax) == np.abs(weight).max(), name


def test_weights_that_changed_since_get_a_new_range(model) -> None:
    qdqbert.calibrate(model, make_batches())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    qdqbert.calibrate(model, make_batches())
    for quantizer, weight in weights_of(model).values():
        assert np.array_equal(quantizer.amax.numpy()[:, 0], np.abs(weight).max(axis=1))


# Shared and clipped ranges


def test_fuse_qkv_gives_the_three_products_inputs_the_widest_range(folder, recorded) -> None:
    apart = ranges_of(recorded[0])
    model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
    fused = ranges_of(qdqbert.calibrate(model, make_batches(), fuse_qkv=True))
    shared = set()
    for layer in range(2):
        group = [
            f"bert.encoder.layer.{layer}.attention.self.matmul_{letter}_input_quantizer"
            for letter in "qkv"
        ]
        shared |= set(group)
        assert len({apart[name] for name in group}) == 3
        assert {fused[name] for name in group} == {max(apart[name] for name in group)}
    assert all(fused[name] == apart[name] for name in apart if name not in shared)


@pytest.mark.parametrize("per_tensor", [False, True], ids=["per-row", "per-tensor"])
def test_fuse_qkv_shares_the_weights_range_only_if_they_have_one(model, per_tensor) -> None:
    recipe = QuantizerOptions(fuse_qkv=True, quant_per_tensor=per_tensor)
    qdqbert.calibrate(model, make_batches(), **recipe.to_dict())
    weights = weights_of(model)
    for layer in range(2):
        group = [
            weights[f"bert.encoder.layer.{layer}.attention.self.{linear}._weight_quantizer"]
            for linear in ("query", "key", "value")
        ]
        for quantizer, weight in group:
            if per_tensor:
                assert float(quantizer.amax) == max(np.abs(each).max() for _, each in group)
            else:
                rows = np.abs(weight).max(axis=1)
                assert np.array_equal(quantizer.amax.numpy()[:, 0], rows)
    quantizer, weight = weights["bert.encoder.layer.0.output.dense._weight_quantizer"]
    assert float(quantizer.amax.max()) == np.abs(weight).max()


def test_clip_gelu_bounds_only_the_inputs_behind_gelu(folder, recorded) -> None:
    free = ranges_of(recorded[0])
    model = qdqbert.QDQBertForSequenceClassification.from_pretrained(folder)
    limit = free[f"bert.encoder.{GELU_INPUT}"] / 2
    clipped = ranges_of(qdqbert.calibrate(model, make_batches(), clip_gelu=limit))
    for name, amax in free.items():
        behind_gelu = name.endswith("output.dense._input_quantizer") and ".attention." not in name
        expected = min(amax, np.float32(limit)) if behind_gelu else amax
        assert clipped[name] == expected, name
    assert clipped[f"bert.encoder.{GELU_INPUT}"] == np.float32(limit)


# What else changes, and what does not


def test_afterwards_all_quantizers_quantize_and_none_collects(recorded) -> None:
    model, _ = recorded
    for name, quantizer in quantizers_of(model).items():
        assert quantizer._if_quant, name
        assert not quantizer._if_calib
        assert quantizer.is_enabled
        assert quantizer.action is None


def test_quantizers_whose_rounding_was_off_quantize_afterwards(model) -> None:
    for quantizer in quantizers_of(model).values():
        quantizer.disable_quant()
    qdqbert.calibrate(model, make_batches())
    off = [name for name, each in quantizers_of(model).items() if not each._if_quant]
    assert off == []


def test_what_the_recipe_leaves_in_float_is_disabled_and_has_no_range(model) -> None:
    recipe = QuantizerOptions(quant_disable_keyword=("matmul_", "layer.1"))
    qdqbert.calibrate(model, make_batches(), **recipe.to_dict())
    for name, quantizer in quantizers_of(model).items():
        left_out = ".matmul_" in name or "layer.1" in name
        assert quantizer.is_enabled != left_out, name
        assert (quantizer.amax is None) == left_out, name


def test_the_next_recipe_enables_what_the_last_one_disabled(model) -> None:
    qdqbert.calibrate(model, make_batches(), quant_disable=True)
    assert not any(each.is_enabled for each in quantizers_of(model).values())
    qdqbert.calibrate(model, make_batches(), quant_disable=False)
    assert all(each.amax is not None for each in quantizers_of(model).values())
    assert all(each.is_enabled for each in quantizers_of(model).values())


def test_quantizers_disabled_by_hand_stay_so(model) -> None:
    name = f"bert.encoder.{GELU_INPUT}"
    quantizers_of(model)[name].disable()
    qdqbert.calibrate(model, make_batches())
    assert not quantizers_of(model)[name].is_enabled
    assert quantizers_of(model)[name].amax is None
    assert sum(each.amax is not None for each in quantizers_of(model).values()) == 39


def test_bits_are_set_and_kept_by_the_next_calibration(model) -> None:
    qdqbert.calibrate(model, make_batches(), wprec=5, aprec=6)
    first = ranges_of(model)
    qdqbert.calibrate(model, make_batches())
    assert {each.num_bits for each in inputs_of(model).values()} == {6}
    assert {each.num_bits for each, _ in weights_of(model).values()} == {5}
    assert model.config.quantizer_options == {"wprec": 5, "aprec": 6}
    assert ranges_of(model) == first


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
def test_the_mode_comes_back_and_dropout_is_off_meanwhile(model, recorded, training) -> None:
    model.train(training)
    assert qdqbert.calibrate(model, make_batches()) is model
    assert model.training == training
    assert all(module.training == training for module in model.modules())
    assert ranges_of(model) == ranges_of(recorded[0])


def test_the_mode_comes_back_after_a_failure(model) -> None:
    model.train()
    with pytest.raises(ValueError, match="input_ids"):
        qdqbert.calibrate(model, [{"no_such_input": torch.ones(1, 2)}])
    assert model.training
    assert all(quantizer.action is None for quantizer in quantizers_of(model).values())


def test_parameters_keep_their_values_and_get_no_gradient(folder, recorded) -> None:
    model, _ = recorded
    plain = transformers.BertForSequenceClassification.from_pretrained(folder)
    for name, parameter in plain.named_parameters():
        ours = model.get_parameter(name)
        assert torch.equal(ours, parameter)
        assert ours.requires_grad
        assert ours.grad is None


def test_other_models_with_sited_quantizers_are_calibrated_too(make_model) -> None:
    sited = insert_quantizers_(make_model("roberta"), quantized_family("roberta"), ["layer"])
    qdqbert.calibrate(sited.model, make_batches(padding_id=1), aprec=7)
    assert len(sited.quantizers) == 20
    for quantizer in sited.quantizers.values():
        assert quantizer.amax is not None
        assert quantizer.is_enabled


# Refusals


@pytest.mark.parametrize("batches", [[], iter(())], ids=["list", "iterator"])
def test_no_batch_is_an_error(model, batches) -> None:
    with pytest.raises(CalibrationError, match="`batches` is empty"):
        qdqbert.calibrate(model, batches)


def test_a_model_without_quantizers_is_refused(folder) -> None:
    plain = transformers.BertForSequenceClassification.from_pretrained(folder)
    with pytest.raises(SpecError, match=r"BertForSequenceClassification\) has no quantizer"):
        qdqbert.calibrate(plain, make_batches())


def test_a_value_that_is_not_finite_is_refused_with_the_site(model) -> None:
    with torch.no_grad():
        model.bert.encoder.layer[1].intermediate.dense.bias[0] = torch.inf
    with pytest.raises(CalibrationError, match=r"`bert\.encoder\.layer\.1\.output\.dense\._input"):
        qdqbert.calibrate(model, make_batches())


def test_a_batch_of_nothing_but_padding_gives_no_range(model) -> None:
    batch = {"input_ids": torch.zeros(2, 4, dtype=torch.int64)}
    batch["attention_mask"] = torch.zeros_like(batch["input_ids"])
    with pytest.raises(CalibrationError, match="saw no data"):
        qdqbert.calibrate(model, [batch])


def test_a_pattern_without_a_match_is_refused_before_anything_changes(model) -> None:
    recipe = QuantizerOptions(aprec=4, quant_disable_keyword=("matmull",))
    with pytest.raises(UnmatchedRuleError, match=r"`quant_disable_keyword` 'matmull'"):
        qdqbert.calibrate(model, make_batches(), **recipe.to_dict())
    assert {each.num_bits for each in quantizers_of(model).values()} == {8}
    assert model.config.quantizer_options is None
