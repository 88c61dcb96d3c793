from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import qdqbert
from qdqbert.compat import nn as ours
from qdqbert.compat.nn import QuantLinear, TensorQuantizer
from qdqbert.compat.quant_modules import (
    QuantModuleReplacementHelper,
    deactivate,
    enable_onnx_export,
    initialize,
)
from qdqbert.compat.tensor_quant import QuantDescriptor

DIMS = ("1d", "2d", "3d")
SWAPPED = {
    *(
        f"{kind}{dims}"
        for kind in ("Conv", "ConvTranspose", "AvgPool", "AdaptiveAvgPool")
        for dims in DIMS
    ),
    "Linear",
    "LSTM",
    "LSTMCell",
}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **{f"{kind}{dims}": (3, 4, 2) for kind in ("Conv", "ConvTranspose") for dims in DIMS},
    **{f"{kind}{dims}": (2,) for kind in ("AvgPool", "AdaptiveAvgPool") for dims in DIMS},
    **dict.fromkeys(("Linear", "LSTM", "LSTMCell"), (3, 4)),
}


def names() -> dict[str, Any]:
    return {name: getattr(nn, name) for name in dir(nn)}


FLOAT = names()


@pytest.fixture(autouse=True)
def torch_names(toolkit_defaults: None) -> Iterator[None]:
    """Puts torch's names back."""
    yield
    deactivate()
    for name, value in FLOAT.items():
        setattr(nn, name, value)


def swapped() -> set[str]:
    return {name for name, value in names().items() if value is not FLOAT[name]}


class Mine(QuantLinear):
    """A replacement of a user's own."""


# Swapping


def test_names_are_swapped_and_put_back() -> None:
    initialize()
    assert swapped() == SWAPPED
    for name in SWAPPED:
        assert getattr(nn, name) is getattr(ours, f"Quant{name}")
    deactivate()
    assert swapped() == set()


@pytest.mark.parametrize("name", sorted(SWAPPED))
def test_modules_are_built_quantized_in_between(name) -> None:
    before = getattr(nn, name)(*ARGUMENTS[name])
    initialize()
    within = getattr(nn, name)(*ARGUMENTS[name])
    deactivate()
    after = getattr(nn, name)(*ARGUMENTS[name])
    assert type(within) is getattr(ours, f"Quant{name}")
    assert type(before) is type(after) is FLOAT[name]
    assert any(isinstance(module, TensorQuantizer) for module in within.modules())


def test_model_built_in_between_runs_afterwards() -> None:
    initialize()
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.ReLU(), nn.AvgPool1d(2), nn.Flatten())
    model.append(nn.Linear(12, 2))
    deactivate()
    model(torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert sum(isinstance(module, TensorQuantizer) for module in model.modules()) == 5


def test_names_may_stay_float() -> None:
    initialize(float_module_list=["Linear", "Conv2d"])
    assert swapped() == SWAPPED - {"Linear", "Conv2d"}
    deactivate()
    assert swapped() == set()


def test_replacements_of_ones_own_are_taken() -> None:
    initialize(custom_quant_modules=[(nn, "MaxPool2d", ours.QuantMaxPool2d), (nn, "Linear", Mine)])
    assert swapped() == SWAPPED | {"MaxPool2d"}
    assert nn.MaxPool2d is ours.QuantMaxPool2d
    assert nn.Linear is Mine
    deactivate()
    assert swapped() == set()


def test_replacement_of_ones_own_is_taken_though_its_name_stays_float() -> None:
    initialize(["Linear"], [(nn, "Linear", Mine)])
    assert nn.Linear is Mine


def test_replacement_may_be_for_another_module() -> None:
    class Place:
        Linear = nn.Linear

    initialize(custom_quant_modules=[(Place, "Linear", Mine)])
    assert Place.Linear is Mine
    assert nn.Linear is QuantLinear
    deactivate()
    assert Place.Linear is FLOAT["Linear"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((), (), SWAPPED),
        ((), (["Linear"],), SWAPPED - {"Linear"}),
        ((["Linear"],), (["Conv2d"],), SWAPPED - {"Conv2d"}),
        ((None, [(nn, "MaxPool2d", ours.QuantMaxPool2d)]), (), SWAPPED),
        ((None, [(nn, "Linear", Mine)]), (["Linear"],), SWAPPED - {"Linear"}),
    ],
    ids=["same", "float-then", "other-float", "custom-before", "custom-then-float"],
)
def test_second_call_is_the_one_that_holds(first, second, expected) -> None:
    initialize(*first)
    initialize(*second)
    assert swapped() == expected
    deactivate()
    assert swapped() == set()


@pytest.mark.parametrize("before", [True, False], ids=["swapped-before", "float-before"])
def test_unknown_float_name_is_refused_and_nothing_stays_swapped(before) -> None:
    if before:
        initialize()
    with pytest.raises(ValueError, match=r"float_module_list names \['Conv4d'\].*Known: Conv1d"):
        initialize(float_module_list=["Linear", "Conv4d"])
    deactivate()
    assert swapped() == set()
    initialize()
    assert swapped() == SWAPPED


def test_defaults_of_a_class_hold_for_swapped_names() -> None:
    QuantLinear.set_default_quant_desc_input(QuantDescriptor(num_bits=4))
    initialize()
    assert nn.Linear(2, 2).input_quantizer.num_bits == 4


def test_helper_swaps_in_two_steps() -> None:
    swap = QuantModuleReplacementHelper()
    swap.prepare_state(float_module_list=["Linear"])
    assert swapped() == set()
    assert {entry.mod_name for entry in swap.quant_map} == SWAPPED - {"Linear"}
    assert {entry.mod_name for entry in swap.orginal_func_map} == SWAPPED - {"Linear"}
    swap.apply_quant_modules()
    assert swapped() == SWAPPED - {"Linear"}
    swap.restore_float_modules()
    assert swapped() == set()


# The switch of an export


def test_the_switch_is_on_only_within_the_block() -> None:
    assert not TensorQuantizer._enable_onnx_export
    with enable_onnx_export():
        assert TensorQuantizer._enable_onnx_export
        with enable_onnx_export():
            assert TensorQuantizer._enable_onnx_export
        assert TensorQuantizer._enable_onnx_export
    assert not TensorQuantizer._enable_onnx_export


def test_switch_is_put_back_when_the_export_fails() -> None:
    with pytest.raises(KeyError), enable_onnx_export():
        raise KeyError("export")
    assert not TensorQuantizer._enable_onnx_export


def test_quantizer_without_a_range_refuses_within() -> None:
    linear, x = QuantLinear(3, 2), torch.ones(1, 3)
    with (
        enable_onnx_export(),
        pytest.raises(AssertionError, match=r"^Quantizer has not been calibrated\. ONNX export"),
    ):
        linear(x)
    linear.input_quantizer.amax = 1.0
    expected = linear(x)
    with enable_onnx_export():
        assert torch.equal(linear(x), expected)


# Checkpoints of transformers


def build(make: Callable[[], Any]) -> Any:
    """Make a model while names are swapped."""
    initialize()
    try:
        return make().eval()
    finally:
        deactivate()


def ranges_of(model: Any) -> dict[str, torch.Tensor | None]:
    """Return the range of each quantizer of the encoder."""
    encoder = getattr(model, "bert", model)
    return {
        name: module.amax
        for name, module in encoder.named_modules()
        if isinstance(module, TensorQuantizer)
    }


@pytest.fixture(scope="module")
def stored(make_model, tmp_path_factory) -> Path:
    """A float checkpoint."""
    folder = Path(tmp_path_factory.mktemp("stored"))
    head = transformers.AutoModelForSequenceClassification
    make_model("bert", head, num_hidden_layers=1).save_pretrained(folder)
    return folder


BERTS = {
    "encoder": transformers.BertModel,
    "head": transformers.BertForSequenceClassification,
}


@pytest.mark.parametrize("saved", BERTS)
@pytest.mark.parametrize("loaded", BERTS)
@pytest.mark.parametrize("shards", [False, True], ids=["one-file", "shards"])
def test_ranges_of_a_model_of_transformers_are_saved_and_loaded(
    stored, tmp_path, saved, loaded, shards
) -> None:
    model = build(lambda: BERTS[saved].from_pretrained(stored))
    quantizers = [each for each in model.modules() if isinstance(each, TensorQuantizer)]
    assert {each.amax for each in quantizers} == {None}
    for each in quantizers:
        each.disable_quant()
        each.enable_calib()
    model(torch.arange(5, 17).reshape(2, 6))
    for each in quantizers:
        each.load_calib_amax()
        each.enable_quant()
        each.disable_calib()
    model.save_pretrained(tmp_path, max_shard_size="20KB" if shards else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == shards
    again = build(lambda: BERTS[loaded].from_pretrained(tmp_path))
    before, after = ranges_of(model), ranges_of(again)
    assert before.keys() == after.keys()
    for name, amax in before.items():
        torch.testing.assert_close(after[name], amax, atol=0, rtol=0)


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("kind", [*BERTS.values(), qdqbert.QDQBertModel])
def test_descriptors_ranges_survive_from_pretrained(stored, kind, learned) -> None:
    desc = QuantDescriptor(amax=4.0, learn_amax=learned)
    QuantLinear.set_default_quant_desc_input(desc)
    model = build(lambda: kind.from_pretrained(stored))
    inputs = [each for name, each in model.named_modules() if name.endswith("_input_quantizer")]
    assert len(inputs) >= 6
    assert [float(each.used_amax) for each in inputs] == [4.0] * len(inputs)
    assert [each.is_learned for each in inputs] == [learned] * len(inputs)


def test_models_without_swapped_names_are_loaded_by_transformers_alone(stored) -> None:
    before = inspect.getattr_static(transformers.PreTrainedModel, "_load_pretrained_model")
    build(lambda: transformers.BertModel.from_pretrained(stored))
    after = inspect.getattr_static(transformers.PreTrainedModel, "_load_pretrained_model")
    assert after is before
