"""What quantized modules share: their quantizers, and the defaults these are made from.

`default_quant_desc_input` and `default_quant_desc_weight` are set per class, before models are
built, as QDQBERT's model card shows; no module changes when they do.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, ClassVar, Self

from torch import nn

from qdqbert.compat.nn.tensor_quantizer import TensorQuantizer
from qdqbert.compat.tensor_quant import QUANT_DESC_8BIT_PER_TENSOR, QuantDescriptor


class _WithInputQuantizer:
    """What both mixins have: an input's quantizer and its default descriptor."""

    default_quant_desc_input: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_PER_TENSOR
    _input_quantizer: TensorQuantizer

    @classmethod
    def set_default_quant_desc_input(cls, value: QuantDescriptor) -> None:
        """Sets how inputs of modules of this class, built from now on, are quantized.

        Raises:
            ValueError: The value is no `QuantDescriptor`.
        """
        cls.default_quant_desc_input = _descriptor(value)

    @property
    def input_quantizer(self) -> TensorQuantizer:
        """The quantizer of the input."""
        return self._input_quantizer


class QuantInputMixin(_WithInputQuantizer):
    """A module with a quantizer on its input.

    Source: pytorch-quantization's `_utils.QuantInputMixin`.
    """

    def init_quantizer(self, quant_desc_input: QuantDescriptor) -> None:
        """Makes the quantizer; to be called by `__init__`.

        Raises:
            TypeError: It is called from elsewhere.
            ValueError: The descriptor asks for real quantization.
        """
        _check_caller()
        _check_fake(quant_desc_input)
        self._fake_quant = True
        self._input_quantizer = TensorQuantizer(quant_desc_input)


class QuantMixin(_WithInputQuantizer):
    """A module with quantizers on its input and on its weight.

    No `QuantInputMixin`: code written for the toolkit tells the two apart by `isinstance`.

    Source: pytorch-quantization's `_utils.QuantMixin`.
    """

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_PER_TENSOR

    @classmethod
    def set_default_quant_desc_weight(cls, value: QuantDescriptor) -> None:
        """Sets how weights of modules of this class, built from now on, are quantized.

        Raises:
            ValueError: The value is no `QuantDescriptor`.
        """
        cls.default_quant_desc_weight = _descriptor(value)

    def init_quantizer(
        self,
        quant_desc_input: QuantDescriptor,
        quant_desc_weight: QuantDescriptor,
        num_layers: int | None = None,
    ) -> None:
        """Makes the quantizers, or `num_layers` of each; to be called by `__init__`.

        Raises:
            TypeError: It is called from elsewhere.
            ValueError: A descriptor asks for real quantization.
        """
        _check_caller()
        _check_fake(quant_desc_input, quant_desc_weight)
        self._fake_quant = True
        if num_layers is None:
            self._input_quantizer = TensorQuantizer(quant_desc_input)
            self._weight_quantizer = TensorQuantizer(quant_desc_weight)
            self._follow_weight()
        else:
            self._input_quantizers = nn.ModuleList(
                TensorQuantizer(quant_desc_input) for _ in range(num_layers)
            )
            self._weight_quantizers = nn.ModuleList(
                TensorQuantizer(quant_desc_weight) for _ in range(num_layers)
            )

    @property
    def weight_quantizer(self) -> TensorQuantizer:
        """The quantizer of the weight."""
        return self._weight_quantizer

    # The weight's quantizer is told of each new weight, so that an export can read its values.

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """As `torch.nn.Module`; also called when a parameter is assigned."""
        super().register_parameter(name, param)  # type: ignore[misc]
        if name == "weight":
            self._follow_weight()

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        super()._apply(*args, **kwargs)  # type: ignore[misc]
        self._follow_weight()
        return self

    def _follow_weight(self) -> None:
        parts = vars(self)
        quantizer = parts.get("_modules", {}).get("_weight_quantizer")
        if quantizer is not None:
            quantizer.follow(parts.get("_parameters", {}).get("weight"))


def pop_quant_desc_in_kwargs(quant_cls: Any, input_only: bool = False, **kwargs: Any) -> Any:
    """The descriptors in `kwargs`, or the class's defaults: input and weight, or input alone.

    Raises:
        TypeError: Other arguments are left.
    """
    quant_desc_input = kwargs.pop("quant_desc_input", quant_cls.default_quant_desc_input)
    if not input_only:
        quant_desc_weight = kwargs.pop("quant_desc_weight", quant_cls.default_quant_desc_weight)
    if kwargs:
        raise TypeError(f"Unused keys: {kwargs.keys()}")
    return quant_desc_input if input_only else (quant_desc_input, quant_desc_weight)


def split_kwargs(cls: type, kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What torch's own class in the bases of `cls` takes, and all that is left."""
    torch_class = next(
        base
        for base in cls.__mro__
        if base.__module__.startswith("torch.nn.modules") and base is not nn.Module
    )
    known = inspect.signature(torch_class.__init__).parameters  # type: ignore[misc]
    theirs = {key: value for key, value in kwargs.items() if key in known}
    return theirs, {key: value for key, value in kwargs.items() if key not in known}


def _descriptor(value: QuantDescriptor) -> QuantDescriptor:
    if not isinstance(value, QuantDescriptor):
        raise ValueError(f"{value} is not an instance of QuantDescriptor!")
    return copy.deepcopy(value)


def _check_fake(*descriptors: QuantDescriptor) -> None:
    if not all(descriptor.fake_quant for descriptor in descriptors):
        raise ValueError("Only fake quantization is supported!")


def _check_caller() -> None:
    frame = inspect.currentframe()
    caller = frame.f_back.f_back if frame and frame.f_back else None
    if caller is None or caller.f_code.co_name != "__init__":
        raise TypeError(
            "pytorch_quantization.nn.modules._utils should be only called by __init__ of quantized "
            "module."
        )
