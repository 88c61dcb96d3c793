"""Compare quantized linear layers, convolutions, poolings and norms with torch and numpy."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from qdqbert.compat import nn as quant_nn
from qdqbert.compat.calibrators import HistogramCalibrator
from qdqbert.compat.nn import (
    QuantConv2d,
    QuantConv3d,
    QuantConvTranspose2d,
    QuantInputMixin,
    QuantLinear,
    QuantMixin,
    pop_quant_desc_in_kwargs,
)
from qdqbert.compat.tensor_quant import QuantDescriptor

pytestmark = pytest.mark.usefixtures("toolkit_defaults")


@dataclasses.dataclass(frozen=True)
class Case:
    """A module of torch: its name, arguments and the shape of its input."""

    name: str
    arguments: dict[str, Any]
    shape: tuple[int, ...]

    @property
    def torch_class(self) -> Any:
        return getattr(nn, self.name)

    @property
    def quant_class(self) -> Any:
        return getattr(quant_nn, f"Quant{self.name}")

    @property
    def axis(self) -> int:
        return int("Transpose" in self.name)

    def __str__(self) -> str:
        arguments = "-".join(f"{name}={value}" for name, value in self.arguments.items())
        return f"{self.name}-{arguments}-{len(self.shape)}d"


def conv(dims: int, *, transposed: bool = False, unbatched: bool = False, **arguments: Any) -> Case:
    sizes = {"in_channels": 4, "out_channels": 6, "kernel_size": 3}
    shape = (4, *(7, 6, 5)[:dims])
    name = f"Conv{'Transpose' if transposed else ''}{dims}d"
    return Case(name, sizes | arguments, shape if unbatched else (2, *shape))


CONVS = [
    case
    for dims in (1, 2, 3)
    for case in (
        conv(dims),
        conv(dims, unbatched=True),
        conv(dims, bias=False, stride=2, padding=1, groups=2),
        conv(dims, dilation=2, padding="same"),
        conv(dims, padding="valid"),
        *(
            conv(dims, padding=1, padding_mode=mode)
            for mode in ("circular", "reflect", "replicate")
        ),
        conv(dims, transposed=True),
        conv(dims, transposed=True, unbatched=True, bias=False),
        conv(dims, transposed=True, stride=2, padding=1, output_padding=1, groups=2),
        conv(dims, transposed=True, dilation=2),
    )
]
LINEARS = [
    Case("Linear", {"in_features": 7, "out_features": 5}, (3, 7)),
    Case("Linear", {"in_features": 7, "out_features": 5, "bias": False}, (2, 3, 7)),
    Case("Linear", {"in_features": 7, "out_features": 5}, (7,)),
]
INPUT_ONLY = [
    case
    for dims in (1, 2, 3)
    for case in (
        Case(f"MaxPool{dims}d", {"kernel_size": 2}, (2, 3, *[6] * dims)),
        Case(
            f"MaxPool{dims}d",
            {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
            (2, 3, *[6] * dims),
        ),
        Case(f"AvgPool{dims}d", {"kernel_size": 2}, (2, 3, *[6] * dims)),
        Case(
            f"AvgPool{dims}d",
            {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
            (2, 3, *[6] * dims),
        ),
        Case(f"AdaptiveAvgPool{dims}d", {"output_size": 3}, (2, 3, *[7] * dims)),
        Case(f"InstanceNorm{dims}d", {"num_features": 3}, (2, 3, *[5] * dims)),
        Case(
            f"InstanceNorm{dims}d",
            {"num_features": 3, "affine": True, "track_running_stats": True},
            (2, 3, *[5] * dims),
        ),
    )
]
WEIGHTED = [*LINEARS, *CONVS]
EACH_CASE = pytest.mark.parametrize("case", [*WEIGHTED, *INPUT_ONLY], ids=str)
EACH_WEIGHTED = pytest.mark.parametrize("case", WEIGHTED, ids=str)
# Steps differ in the last bit of float64, and sums are in another order.
EXACT = {"rtol": 1e-10, "atol": 1e-11}
ONE_OF_EACH = list({case.name: case for case in reversed([*WEIGHTED, *INPUT_ONLY])}.values())


def draw(*shape: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal(shape))


def rounded(x: Tensor, *, axis: int | None = None, bits: int = 8) -> Tensor:
    """Symmetric fake quantization by its own largest magnitudes, by numpy in float64."""
    wide = x.detach().cpu().double().numpy()
    rest = None if axis is None else tuple(each for each in range(wide.ndim) if each != axis)
    highest = 2 ** (bits - 1) - 1
    step = np.abs(wide).max(axis=rest, keepdims=axis is not None) / highest
    ratio = wide / step
    assert np.abs(ratio - np.floor(ratio) - 0.5).min() > 1e-9, "a tie: take another seed"
    return torch.from_numpy(np.rint(ratio) * step).to(x.dtype).to(x.device)


def pair_of(case: Case, **descs: QuantDescriptor) -> tuple[Any, Any]:
    """Torch's module, and ours with the same parameters, in float64: far from ties of float32."""
    torch.manual_seed(0)
    plain = case.torch_class(**case.arguments).double()
    quantized = case.quant_class(**case.arguments, **descs).double()
    quantized.load_state_dict(plain.state_dict(), strict=True)
    return plain, quantized


@EACH_CASE
def test_result_is_torchs_of_rounded_numbers(device, case) -> None:
    plain, quantized = (module.to(device) for module in pair_of(case))
    x = draw(*case.shape).to(device)
    if isinstance(quantized, QuantMixin):
        with torch.no_grad():
            plain.weight.copy_(rounded(plain.weight, axis=case.axis))
    torch.testing.assert_close(quantized(x), plain(rounded(x)), **EXACT)


@EACH_WEIGHTED
@pytest.mark.parametrize("bits", [3, 4], ids=str)
def test_descriptors_of_a_module_are_used(case, bits) -> None:
    descs = {
        "quant_desc_input": QuantDescriptor(num_bits=bits),
        "quant_desc_weight": QuantDescriptor(num_bits=bits + 1, axis=None),
    }
    plain, quantized = pair_of(case, **descs)
    x = draw(*case.shape, seed=1)
    with torch.no_grad():
        plain.weight.copy_(rounded(plain.weight, bits=bits + 1))
    torch.testing.assert_close(quantized(x), plain(rounded(x, bits=bits)), **EXACT)


@EACH_CASE
def test_gradients_are_torchs_at_rounded_numbers(case) -> None:
    plain, quantized = pair_of(case)
    x = draw(*case.shape)
    # Of its own range nothing is clipped, so that the gradient passes straight through.
    ours, theirs = x.clone().requires_grad_(), rounded(x).requires_grad_()
    if isinstance(quantized, QuantMixin):
        with torch.no_grad():
            plain.weight.copy_(rounded(plain.weight, axis=case.axis))
    result, expected = quantized(ours), plain(theirs)
    upstream = draw(*result.shape, seed=1)
    result.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(ours.grad, theirs.grad, **EXACT)
    for name, parameter in plain.named_parameters():
        found = quantized.get_parameter(name).grad
        torch.testing.assert_close(found, parameter.grad, **EXACT)


@pytest.mark.parametrize(
    "case", [case for case in ONE_OF_EACH if case in WEIGHTED], ids=lambda case: case.name
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_dtype_of_the_module_is_kept(case, dtype) -> None:
    _, quantized = pair_of(case)
    assert quantized.to(dtype)(draw(*case.shape).to(dtype)).dtype == dtype


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.name)
def test_module_is_torchs_with_quantizers(case) -> None:
    _, quantized = pair_of(case)
    assert isinstance(quantized, case.torch_class)
    assert quantized.input_quantizer is quantized._input_quantizer
    assert quantized.input_quantizer.axis is None
    if isinstance(quantized, QuantMixin):
        assert quantized.weight_quantizer is quantized._weight_quantizer
        assert quantized.weight_quantizer.axis == case.axis
    else:
        assert not hasattr(quantized, "weight_quantizer")
    assert set(quantized.state_dict()) == set(pair_of(case)[0].state_dict())


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.name)
def test_arguments_may_be_given_by_position(case) -> None:
    quantized = case.quant_class(*case.arguments.values()).double()
    assert quantized(draw(*case.shape)).isfinite().all()


@pytest.mark.parametrize(
    "case", [case for case in ONE_OF_EACH if case in WEIGHTED], ids=lambda case: case.name
)
def test_device_and_dtype_may_be_given(case) -> None:
    quantized = case.quant_class(**case.arguments, device="meta", dtype=torch.float16)
    assert quantized.weight.is_meta
    assert quantized.weight.dtype == torch.float16


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.name)
@pytest.mark.parametrize(
    "through",
    [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))],
    ids=["deepcopy", "pickle"],
)
def test_copies_are_equal_and_apart(case, through) -> None:
    _, quantized = pair_of(case)
    other = through(quantized)
    x = draw(*case.shape)
    before = quantized(x)
    assert torch.equal(other(x), before)
    other.input_quantizer.amax = 0.01
    assert not torch.equal(other(x), before)
    assert torch.equal(quantized(x), before)


COMPILED = ("Linear", "Conv1d", "ConvTranspose1d", "MaxPool1d")


# torch's own compiler makes an instance.
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in COMPILED),
        ("Linear", {"amax": 2.0}),
        ("Linear", {"amax": 2.0, "learn_amax": True}),
        ("Linear", {"scale_amax": 0.9}),
        ("Linear", {"num_bits": (4, 3)}),
    ],
    ids=str,
)
@pytest.mark.usual("Linear-*")
def test_compiled_module_gives_the_same_result(name, settings) -> None:
    case = next(each for each in ONE_OF_EACH if each.name == name)
    module = case.quant_class(**case.arguments, quant_desc_input=QuantDescriptor(**settings))
    x = draw(*case.shape).float()
    torch.compiler.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x))


def test_instance_norm_updates_its_statistics_from_rounded_numbers() -> None:
    case = Case("InstanceNorm2d", {"num_features": 3, "track_running_stats": True}, (2, 3, 5, 5))
    plain, quantized = pair_of(case)
    x = draw(*case.shape) + 1
    quantized(x)
    plain(rounded(x))
    torch.testing.assert_close(quantized.running_mean, plain.running_mean, **EXACT)
    torch.testing.assert_close(quantized.running_var, plain.running_var, **EXACT)


def test_max_pool_gives_indices_if_asked() -> None:
    pool = quant_nn.QuantMaxPool2d(2, return_indices=True)
    x = draw(1, 1, 4, 4)
    result, indices = pool(x)
    expected = rounded(x).flatten()[indices.flatten()].view_as(result)
    torch.testing.assert_close(result, expected, **EXACT)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolution_takes_the_size_of_its_output(dims) -> None:
    case = conv(dims, transposed=True, stride=2)
    plain, quantized = pair_of(case)
    x = draw(*case.shape)
    size = [2 * each + 2 for each in case.shape[2:]]
    for module in (quantized.input_quantizer, quantized.weight_quantizer):
        module.disable()
    result = quantized(x, output_size=size)
    assert list(result.shape[2:]) == size
    assert torch.equal(result, plain(x, output_size=size))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolution_refuses_other_padding_when_run(dims) -> None:
    case = conv(dims, transposed=True)
    _, quantized = pair_of(case)
    quantized.padding_mode = "circular"
    message = f"^Only `zeros` padding mode is supported for QuantConvTranspose{dims}d$"
    with pytest.raises(ValueError, match=message):
        quantized(draw(*case.shape))


def test_shared_weight_is_of_the_float_linear() -> None:
    plain = nn.Linear(7, 5).double().eval()
    quantized = QuantLinear.from_float(plain)
    assert quantized.weight is plain.weight
    assert quantized.bias is plain.bias
    assert not quantized.training
    assert QuantLinear.from_float(nn.Linear(7, 5, bias=False)).bias is None
    x = draw(3, 7)
    expected = rounded(x) @ rounded(plain.weight, axis=0).t() + plain.bias
    torch.testing.assert_close(quantized(x), expected, **EXACT)


# Class-level defaults


def test_default_of_a_class_is_that_of_modules_built_later() -> None:
    before = QuantLinear(2, 2)
    QuantLinear.set_default_quant_desc_input(QuantDescriptor(num_bits=8, calib_method="histogram"))
    QuantLinear.set_default_quant_desc_weight(QuantDescriptor(num_bits=4, axis=None))
    after = QuantLinear(2, 2)
    assert isinstance(after.input_quantizer._calibrator, HistogramCalibrator)
    assert (after.weight_quantizer.num_bits, after.weight_quantizer.axis) == (4, None)
    assert not isinstance(before.input_quantizer._calibrator, HistogramCalibrator)
    assert (before.weight_quantizer.num_bits, before.weight_quantizer.axis) == (8, 0)


def test_default_of_a_class_is_its_own() -> None:
    QuantConv2d.set_default_quant_desc_input(QuantDescriptor(num_bits=4))
    QuantConv2d.set_default_quant_desc_weight(QuantDescriptor(num_bits=5))
    assert QuantConv2d(1, 1, 1).input_quantizer.num_bits == 4
    assert QuantConv2d(1, 1, 1).weight_quantizer.num_bits == 5
    for other in (QuantConv3d(1, 1, 1), QuantConvTranspose2d(1, 1, 1), QuantLinear(1, 1)):
        assert other.input_quantizer.num_bits == other.weight_quantizer.num_bits == 8


# Modules made of float ones, as scripts for detectors do


def transferred(plain: nn.Module, quant_class: Any) -> Any:
    """Ours with what the float module has, without a call of its `__init__`."""
    new = quant_class.__new__(quant_class)
    for name, value in vars(plain).items():
        setattr(new, name, value)

    def __init__(self: Any) -> None:  # noqa: N807 - `init_quantizer` looks at its caller's name
        if isinstance(self, QuantInputMixin):
            self.init_quantizer(pop_quant_desc_in_kwargs(type(self), input_only=True))
        else:
            self.init_quantizer(*pop_quant_desc_in_kwargs(type(self)))

    __init__(new)
    return new


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case.name)
def test_module_made_from_the_parts_of_a_float_one_runs(case) -> None:
    plain, quantized = pair_of(case)
    new = transferred(plain, case.quant_class)
    x = draw(*case.shape)
    assert torch.equal(new(x), quantized(x))
    assert set(new.state_dict()) == set(quantized.state_dict())
    new.float()
    assert new(x.float()).dtype == torch.float32
