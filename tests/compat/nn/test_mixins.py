from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from qdqbert.compat.nn import (
    QuantInputMixin,
    QuantLinear,
    QuantMaxPool2d,
    QuantMixin,
    TensorQuantizer,
    pop_quant_desc_in_kwargs,
)
from qdqbert.compat.tensor_quant import QuantDescriptor

pytestmark = pytest.mark.usefixtures("toolkit_defaults")

INPUT = QuantDescriptor(num_bits=4)
WEIGHT = QuantDescriptor(num_bits=5, axis=0)


class Scaled(nn.Module, QuantMixin):
    """A module of a user's own: torch's class first, as in the toolkit's documentation."""

    def __init__(self, size: int, **kwargs: Any) -> None:
        super().__init__()
        descs = pop_quant_desc_in_kwargs(type(self), **kwargs)
        self.weight = nn.Parameter(torch.linspace(-1, 1, size))
        self.init_quantizer(*descs)

    def forward(self, x: Tensor) -> Tensor:
        return self._input_quantizer(x) * self._weight_quantizer(self.weight)


class Doubled(nn.Module, QuantInputMixin):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.init_quantizer(pop_quant_desc_in_kwargs(type(self), True, **kwargs))

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self._input_quantizer(x)


def test_user_defined_modules_have_quantizers() -> None:
    module = Scaled(3, quant_desc_input=INPUT, quant_desc_weight=WEIGHT)
    assert module.input_quantizer.num_bits == 4
    assert module.weight_quantizer.num_bits == 5
    # Codes of amax alone, which come back as they were.
    x = torch.tensor([[7.0, 0.0, -7.0]])
    assert module(x).tolist() == [[-7, 0, -7]]
    assert set(module.state_dict()) == {"weight"}


def test_user_defined_modules_can_quantize_only_their_input() -> None:
    module = Doubled(quant_desc_input=INPUT)
    assert module.input_quantizer.num_bits == 4
    assert not hasattr(module, "weight_quantizer")
    assert module(torch.tensor([7.0, 3.2])).tolist() == [14, 6]


def test_defaults_of_ones_own_class_are_its_own() -> None:
    Scaled.set_default_quant_desc_input(INPUT)
    Scaled.set_default_quant_desc_weight(WEIGHT)
    Doubled.set_default_quant_desc_input(WEIGHT)
    module = Scaled(3)
    assert (module.input_quantizer.num_bits, module.weight_quantizer.num_bits) == (4, 5)
    assert Doubled().input_quantizer.num_bits == 5
    assert QuantMixin.default_quant_desc_input == QuantDescriptor(8)
    assert QuantMixin.default_quant_desc_weight == QuantDescriptor(8)
    assert QuantInputMixin.default_quant_desc_input == QuantDescriptor(8)


def test_default_is_a_copy() -> None:
    desc = QuantDescriptor(num_bits=4, amax=[1.0, 2.0], axis=0)
    QuantLinear.set_default_quant_desc_input(desc)
    desc.amax[0] = 9.0
    assert QuantLinear.default_quant_desc_input.amax.tolist() == [1, 2]


@pytest.mark.parametrize("value", [None, 8, {"num_bits": 8}], ids=str)
@pytest.mark.parametrize(
    "setter",
    [
        QuantLinear.set_default_quant_desc_input,
        QuantLinear.set_default_quant_desc_weight,
        QuantMaxPool2d.set_default_quant_desc_input,
    ],
    ids=["input", "weight", "pool"],
)
def test_default_has_to_be_a_descriptor(setter, value) -> None:
    with pytest.raises(ValueError, match=r"is not an instance of QuantDescriptor!$"):
        setter(value)


def test_quantizers_are_made_only_in_init() -> None:
    message = (
        r"^pytorch_quantization\.nn\.modules\._utils should be only called by __init__ of "
        r"quantized module\.$"
    )
    with pytest.raises(TypeError, match=message):
        QuantLinear(2, 2).init_quantizer(INPUT, WEIGHT)
    with pytest.raises(TypeError, match=message):
        QuantMaxPool2d(2).init_quantizer(INPUT)


@pytest.mark.parametrize(
    "descs",
    [
        {"quant_desc_input": QuantDescriptor(fake_quant=False)},
        {"quant_desc_weight": QuantDescriptor(fake_quant=False)},
    ],
    ids=["input", "weight"],
)
def test_real_quantization_is_refused(descs) -> None:
    with pytest.raises(ValueError, match=r"^Only fake quantization is supported!$"):
        Scaled(3, **descs)


def test_quantizers_for_layers_are_lists() -> None:
    class Stacked(nn.Module, QuantMixin):
        def __init__(self) -> None:
            super().__init__()
            self.init_quantizer(INPUT, WEIGHT, num_layers=3)

    stacked = Stacked()
    for quantizers, bits in ((stacked._input_quantizers, 4), (stacked._weight_quantizers, 5)):
        assert isinstance(quantizers, nn.ModuleList)
        assert [quantizer.num_bits for quantizer in quantizers] == [bits] * 3
        assert len(set(quantizers)) == 3
    assert not hasattr(stacked, "_input_quantizer")


def test_descriptors_come_from_arguments_then_from_the_class() -> None:
    assert pop_quant_desc_in_kwargs(QuantLinear) == (
        QuantDescriptor(8),
        QuantDescriptor(8, axis=0),
    )
    assert pop_quant_desc_in_kwargs(QuantLinear, quant_desc_weight=WEIGHT) == (
        QuantDescriptor(8),
        WEIGHT,
    )
    assert pop_quant_desc_in_kwargs(
        QuantLinear, quant_desc_input=INPUT, quant_desc_weight=WEIGHT
    ) == (INPUT, WEIGHT)
    assert pop_quant_desc_in_kwargs(QuantMaxPool2d, input_only=True) == QuantDescriptor(8)
    assert pop_quant_desc_in_kwargs(QuantMaxPool2d, True, quant_desc_input=INPUT) == INPUT


def test_other_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^Unused keys: dict_keys\(\['quant_desc'\]\)$"):
        pop_quant_desc_in_kwargs(QuantLinear, quant_desc=INPUT)
    with pytest.raises(TypeError, match=r"^Unused keys: dict_keys\(\['quant_desc_weight'\]\)$"):
        pop_quant_desc_in_kwargs(QuantMaxPool2d, input_only=True, quant_desc_weight=WEIGHT)


def test_a_module_with_a_weight_is_not_one_that_quantizes_only_its_input() -> None:
    # Scripts ask this to tell which arguments `init_quantizer` takes.
    assert not issubclass(QuantMixin, QuantInputMixin)
    assert not issubclass(QuantInputMixin, QuantMixin)


def test_new_weight_has_its_own_range() -> None:
    linear = QuantLinear(2, 1, bias=False)
    linear.input_quantizer.disable()
    for value in (1.0, 8.0):
        linear.weight = nn.Parameter(torch.tensor([[value, -value]]))
        assert linear(torch.tensor([[1.0, 0.0]])).item() == pytest.approx(value)
    assert isinstance(linear.weight_quantizer, TensorQuantizer)
