"""Base classes of quantized modules: their quantizers, and the default descriptors.

`default_quant_desc_input` and `default_quant_desc_weight` are set on a class before a model is
built, as QDQBERT's model card shows. Existing modules do not change.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any, ClassVar, Self

from torch import nn

from qdqbert.compat.nn.tensor_quantizer import TensorQuantizer
from qdqbert.compat.tensor_quant import QUANT_DESC_8BIT_PER_TENSOR, QuantDescriptor


class _WithInputQuantizer:
    """A module with a quantizer on its input, and the default descriptor of that quantizer."""

    default_quant_desc_input: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_PER_TENSOR
    _input_quantizer: TensorQuantizer

    @classmethod
    def set_default_quant_desc_input(cls, value: QuantDescriptor) -> None:
        """Set how inputs are quantized by modules of this class that are built from now on.

        Raises:
            ValueError: The value is not a `QuantDescriptor`.
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
        """Create the quantizer. Only `__init__` may call this.

        Raises:
            TypeError: It is called by another function.
            ValueError: The descriptor asks for real quantization.
        """
        _check_caller()
        _check_fake(quant_desc_input)
        self._fake_quant = True
        self._input_quantizer = TensorQuantizer(quant_desc_input)


class QuantMixin(_WithInputQuantizer):
    """A module with quantizers on its input and on its weight.

    It is not a `QuantInputMixin`, since code for the toolkit distinguishes them by `isinstance`.

    Source: pytorch-quantization's `_utils.QuantMixin`.
    """

    default_quant_desc_weight: ClassVar[QuantDescriptor] = QUANT_DESC_8BIT_PER_TENSOR

    @classmethod
    def set_default_quant_desc_weight(cls, value: QuantDescriptor) -> None:
        """Set how weights are quantized by modules of this class that are built from now on.

        Raises:
            ValueError: The value is not a `QuantDescriptor`.
        """
        cls.default_quant_desc_weight = _descriptor(value)

    def init_quantizer(
        self,
        quant_desc_input: QuantDescriptor,
        quant_desc_weight: QuantDescriptor,
        num_layers: int | None = None,
    ) -> None:
        """Create the quantizers, or `num_layers` of each. Only `__init__` may call this.

        Raises:
            TypeError: It is called by another function.
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

    # The weight quantizer gets each new weight, so that an export can read its values.

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter. torch calls this when one is assigned, too."""
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


class FromTorch:
    """A constructor with the arguments of a torch module, and the descriptors of its quantizers.

    It precedes a mixin, which precedes the module of torch, in the list of bases.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        torch_class: Any = next(
            base
            for base in type(self).__mro__
            if base.__module__.startswith("torch.nn.modules") and base is not nn.Module
        )
        known = inspect.signature(torch_class.__init__).parameters
        theirs = {key: kwargs.pop(key) for key in list(kwargs) if key in known}
        if isinstance(self, QuantMixin):
            descriptors = pop_quant_desc_in_kwargs(type(self), **kwargs)
        else:
            descriptors = (pop_quant_desc_in_kwargs(type(self), input_only=True, **kwargs),)
        super().__init__(*args, **theirs)
        self.init_quantizer(*descriptors)  # type: ignore[attr-defined]


def pop_quant_desc_in_kwargs(quant_cls: Any, input_only: bool = False, **kwargs: Any) -> Any:
    """Return the descriptors in `kwargs`, or the defaults of the class.

    Returns:
        The descriptors of input and weight, or of the input only.

    Raises:
        TypeError: There are other arguments.
    """
    quant_desc_input = kwargs.pop("quant_desc_input", quant_cls.default_quant_desc_input)
    if not input_only:
        quant_desc_weight = kwargs.pop("quant_desc_weight", quant_cls.default_quant_desc_weight)
    if kwargs:
        raise TypeError(f"Unused keys: {kwargs.keys()}")
    return quant_desc_input if input_only else (quant_desc_input, quant_desc_weight)


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
