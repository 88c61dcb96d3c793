"""Quantizers at the sites of a model, and different ways to run the model.

    with observing(sited, observe): ...                     # calibration
    with quantizing(sited, specs, calibration): ...         # emulate INT8

Outside of these contexts, quantizers are disabled, and the model computes in float.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from qdqbert.calibration.calibration import CalibrationResult
from qdqbert.calibration.quantizers.quantizer import Action, Quantizer
from qdqbert.common.errors import CalibrationError
from qdqbert.common.machine import release_memory_after
from qdqbert.quantization.numerics.affine import (
    QuantizationParameters,
    dequantize,
    dynamic_parameters,
    fake_quantize,
    parameters_of,
    quantize_weight,
    rounding_shift,
    spread_weight,
)
from qdqbert.quantization.numerics.weight_rounding import rounding_of
from qdqbert.quantization.spec import (
    Site,
    TensorSpec,
    input_site_of,
    is_linear_input,
    is_residual_input,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SitedModel:
    """A model with quantizers at its sites.

    Attributes:
        quantizers: Quantizers by site name, in the order of the model's modules.
    """

    model: nn.Module
    quantizers: Mapping[str, Quantizer]

    @property
    def sites(self) -> tuple[Site, ...]:
        """All sites, in order."""
        return tuple(site_of(quantizer) for quantizer in self.quantizers.values())


def site_of(quantizer: Quantizer) -> Site:
    """Return the site of a quantizer that was inserted."""
    assert quantizer.site is not None
    return quantizer.site


def sited_model(model: nn.Module) -> SitedModel:
    """Find the quantizers that a model already has."""
    return SitedModel(
        model=model,
        quantizers={
            module.site.name: module
            for module in model.modules()
            if isinstance(module, Quantizer) and module.site is not None
        },
    )


@contextlib.contextmanager
def observing(
    sited: SitedModel,
    observe: Callable[[Site, Tensor], None],
    scales: Mapping[str, Tensor] | None = None,
) -> Iterator[None]:
    """Show every activation to `observe`. The model computes in float.

    Args:
        sited: The model.
        observe: Called with the site and value of each activation, multiplied by its scale.
        scales: `pre_quant_scale` of the sites that have one, by name. Shape `(channels,)`.
    """
    show = scaled(observe, scales or {})

    def action(site: Site, x: Tensor) -> Tensor:
        show(site, x)
        return x

    with _acting(
        sited,
        {
            site.name: functools.partial(action, site) if site.kind == "activation" else _same
            for site in sited.sites
        },
    ):
        yield


def scaled(
    observe: Callable[[Site, Tensor], None], scales: Mapping[str, Tensor]
) -> Callable[[Site, Tensor], None]:
    """Return a function that passes activations on to `observe`, multiplied by their scales.

    A tensor that several sites read with the same scale, as query, key and value do, is passed on
    as one object.

    Args:
        observe: Called with the site and value of each activation.
        scales: `pre_quant_scale` of the sites that have one, by name. Shape `(channels,)`.
    """
    last: list[tuple[Tensor, Tensor, Tensor]] = []

    def show(site: Site, x: Tensor) -> None:
        scale = scales.get(site.name)
        if scale is None:
            observe(site, x)
            return
        if not (last and last[0][0] is x and last[0][1] is scale):
            last[:] = [(x, scale, x * scale)]
        observe(site, last[0][2])

    return show


@contextlib.contextmanager
def quantizing(
    sited: SitedModel, specs: Mapping[str, TensorSpec | None], calibration: CalibrationResult
) -> Iterator[None]:
    """Fake-quantize every site that has a spec.

    Weights are divided by the scales of their inputs, and inputs of residual adds by their own
    after rounding.

    Args:
        sited: The model.
        specs: Specs of all sites, by name.
        calibration: Ranges of the activations whose specs are not dynamic, and so on.

    Raises:
        CalibrationError: An activation has a spec and no range.
    """
    ranges, scales, means = calibration.ranges, calibration.scales, calibration.means
    shifts: dict[str, Tensor] = {}
    actions: dict[str, Action] = {}
    for site in sited.sites:
        spec = specs[site.name]
        scaled = input_site_of(site.name) if site.kind == "weight" else site.name
        # A weight is divided if its input is multiplied, whether or not the weight is quantized.
        scale = scales.get(scaled) if specs.get(scaled) is not None else None
        if spec is None and scale is None:
            continue
        if site.kind == "weight":
            amax = calibration.weight_amax.get(site.name)
            # The range comes from the current values, so it cannot be out of date.
            weight = weight_of(sited.model, site.name)
            # Bit for bit like a quantizer whose `pre_quant_scale` is the inverse.
            weight = weight if scale is None else weight * (1 / scale)
            rounds_up = rounding_of(calibration.roundings, site.name, weight.shape[1], specs)
            rounded = _rounded_weight(weight, spec, amax, rounds_up)
            actions[site.name] = _constant(rounded)
            release_memory_after(weight.nbytes)
            if spec is not None and scaled in means:
                mean = means[scaled].to(weight.device)
                mean = mean if scale is None else mean * scale
                shifts[site.name.rpartition(".")[0]] = rounding_shift(weight, rounded, mean)
        elif spec is None:
            continue
        elif spec.dynamic:
            actions[site.name] = functools.partial(_quantize_dynamic, scale=scale, spec=spec)
        elif site.name in ranges:
            parameters = parameters_of(ranges[site.name], spec)
            restores = scale is not None and is_residual_input(site.name)
            actions[site.name] = functools.partial(
                _quantize, scale=scale, parameters=parameters, spec=spec, restores=restores
            )
        else:
            raise CalibrationError(
                f"Quantizer `{site.name}` saw no data during calibration. Calibrate it, or leave "
                f"it in float with `Rule(site={site.name!r}, spec=None)`."
            )
    with _acting(sited, actions), _shifting_biases(sited.model, shifts):
        yield


@contextlib.contextmanager
def _acting(sited: SitedModel, actions: Mapping[str, Action]) -> Iterator[None]:
    before = {name: quantizer.action for name, quantizer in sited.quantizers.items()}
    for name, action in actions.items():
        sited.quantizers[name].action = action
    try:
        yield
    finally:
        for name, quantizer in sited.quantizers.items():
            quantizer.action = before[name]


@contextlib.contextmanager
def _shifting_biases(model: nn.Module, shifts: Mapping[str, Tensor]) -> Iterator[None]:
    """Add shifts to the biases of linear layers, by path, within the context."""
    linears: dict[str, Any] = {path: model.get_submodule(path) for path in shifts}
    before = {path: linear.bias for path, linear in linears.items()}
    for path, linear in linears.items():
        shift = shifts[path].to(linear.weight.dtype)
        bias = shift if linear.bias is None else linear.bias.detach() + shift
        linear.bias = nn.Parameter(bias, requires_grad=False)
    try:
        yield
    finally:
        for path, linear in linears.items():
            linear.bias = before[path]


def linear_weights(sited: SitedModel) -> dict[str, Tensor]:
    """Return the weight `(out, in)` of each linear layer, by the name of its input's site."""
    return {
        name: weight_of(sited.model, name) for name in sited.quantizers if is_linear_input(name)
    }


def weight_of(model: nn.Module, site_name: str) -> Tensor:
    """Return the weight of the linear layer or embedding that a site belongs to."""
    weight = model.get_submodule(site_name.rpartition(".")[0]).weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _rounded_weight(
    weight: Tensor, spec: TensorSpec | None, amax: Tensor | None, rounds_up: Tensor | None
) -> Tensor:
    """Return a weight, quantized and dequantized; the weight itself without a spec."""
    if spec is None:
        return weight
    spread, amax = spread_weight(weight, spec, amax)
    codes, parameters = quantize_weight(spread, spec, amax, rounds_up)
    rounded = dequantize(codes, parameters, spec).to(weight.dtype)
    # Brought back, as the input is.
    return rounded if spec.hadamard is None else spec.hadamard.spread(rounded)


def _quantize(
    x: Tensor,
    *,
    scale: Tensor | None,
    parameters: QuantizationParameters,
    spec: TensorSpec,
    restores: bool,
) -> Tensor:
    if scale is None:
        return fake_quantize(x, parameters, spec)
    made = fake_quantize(x * scale, parameters, spec)
    return made * (1 / scale) if restores else made


def _quantize_dynamic(x: Tensor, *, scale: Tensor | None, spec: TensorSpec) -> Tensor:
    x = x if scale is None else x * scale
    if spec.hadamard is None:
        return fake_quantize(x, dynamic_parameters(x, spec), spec)
    x = spec.hadamard.spread(x)
    # Brought back, as the weight is.
    return spec.hadamard.spread_weight(fake_quantize(x, dynamic_parameters(x, spec), spec))


def _same(x: Tensor) -> Tensor:
    return x


def _constant(value: Tensor) -> Action:
    # Rounded once: for a small model, rounding takes longer than the rest of a forward pass.
    return lambda _: value
