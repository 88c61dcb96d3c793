"""Insert quantizers at the sites of a model, and run the model in different ways.

    with observing(sited, observe): ...                     # calibration
    with quantizing(sited, specs, ranges, scales): ...      # compute what INT8 will compute

`insert_quantizers_` leaves all quantizers disabled, so outside of these the model still computes
what the float model does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from qdqbert.checkpoint.families import Family, LayerSites
from qdqbert.errors import CalibrationError, CheckpointError
from qdqbert.insert.blocks import BLOCKS, quantized_block
from qdqbert.insert.factory import PLAIN, QuantizerFactory
from qdqbert.insert.modules import (
    ATTENTION,
    QuantEmbedding,
    QuantResidualOutput,
    add_matmul_quantizers_,
    add_residual_quantizers_,
    quantized_linear,
    register_attention,
)
from qdqbert.insert.outputs import add_output_quantizers_, check_outputs
from qdqbert.numerics.affine import (
    QuantizationParameters,
    dequantize,
    dynamic_parameters,
    fake_quantize,
    parameters_of,
    quantize_weight,
    rounding_shift,
)
from qdqbert.numerics.weight_rounding import Roundings, rounding_of
from qdqbert.quantizers.quantizer import Action, Quantizer
from qdqbert.spec import (
    CROSS_SEQUENCE_AXES,
    MATMUL_SEQUENCE_AXES,
    Range,
    Site,
    SiteGroup,
    TensorSpec,
    input_site_of,
    is_linear_input,
    is_residual_input,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SitedModel:
    """A transformers model with quantizers at its sites.

    Attributes:
        model: The model, changed in place.
        quantizers: Quantizers by site name, in the order of the model's modules.
    """

    model: nn.Module
    quantizers: Mapping[str, Quantizer]

    @property
    def sites(self) -> tuple[Site, ...]:
        """All sites, in order."""
        return tuple(site_of(quantizer) for quantizer in self.quantizers.values())


def insert_quantizers_(
    model: nn.Module,
    family: Family,
    groups: Collection[SiteGroup] = ("layer", "table"),
    *,
    factory: QuantizerFactory = PLAIN,
) -> SitedModel:
    """Insert a quantizer at every site of a family's layers. Changes `model` in place.

    A layer of BERT gets 20 quantizers, as in QDQBERT: 6 linear layers x (input, weight), 4 inputs
    of the attention matmuls, and 2 inputs at each of 2 residual adds. For other families see
    `qdqbert.checkpoint.families`. Each embedding table gets one. Parameters keep their names. All
    quantizers are disabled.

    Args:
        model: A transformers model.
        family: Layout of its layers.
        groups: Groups of sites that get quantizers, as `Recipe.groups`.
        factory: Makes the quantizers of layers.

    Raises:
        CheckpointError: The model has no encoder layer of this family, or a group of sites is not
            known for the family.
    """
    layers = encoder_layers(model, family)
    if family.sites is None:
        raise CheckpointError(
            f"Modules of family `{family.model_type}` get no quantizers, so it has no QAT. "
            "`quantize` calibrates its checkpoints."
        )
    if not layers:
        raise CheckpointError(
            f"The model ({type(model).__name__}) has no encoder layer of family "
            f"`{family.model_type}`; expected modules named like `{family.layer_example}`."
        )
    register_attention()
    model.config._attn_implementation = ATTENTION  # type: ignore[union-attr]
    # A QDQBERT model has quantizers already.
    if not sited_model(model).quantizers:
        if "output" in groups:
            check_outputs(family)
        for name in layers:
            _insert_in_layer_(model, name, family, factory)
        if "output" in groups:
            add_output_quantizers_(model, layers, family, factory)
    for name, module in list(model.named_modules()):
        if (
            "table" in groups
            and family.is_embedding_table(name)
            and isinstance(module, nn.Embedding)
        ):
            model.set_submodule(name, QuantEmbedding.from_float(module, name=name))
    sited = sited_model(model.eval())
    for quantizer in sited.quantizers.values():
        quantizer.disable()
    return sited


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


def encoder_layers(model: nn.Module, family: Family) -> list[str]:
    """Return the paths of the encoder layers, in order."""
    return [name for name, _ in model.named_modules() if family.is_layer(name)]


def _insert_in_layer_(
    model: nn.Module, layer: str, family: Family, factory: QuantizerFactory
) -> None:
    assert family.sites is not None
    _insert_at_(model, layer, family.sites, factory)
    cross = family.cross_attention
    if cross is not None and _has(model, f"{layer}.{cross.attention}"):
        _insert_at_(model, layer, cross, factory)
    for path, module in list(model.get_submodule(layer).named_modules()):
        if type(module) in BLOCKS:
            model.set_submodule(f"{layer}.{path}".removesuffix("."), quantized_block(module))


def _insert_at_(model: nn.Module, layer: str, sites: LayerSites, factory: QuantizerFactory) -> None:
    for source, paths in sites.linear_layers.items():
        for path in paths:
            name = f"{layer}.{path}"
            linear = model.get_submodule(name)
            assert isinstance(linear, nn.Linear), name
            new = quantized_linear(
                linear,
                name=name,
                source=source,
                over_tokens=source != "encoder",
                factory=factory,
            )
            model.set_submodule(name, new)
    name = f"{layer}.{sites.attention}"
    axes = CROSS_SEQUENCE_AXES if sites.reads_encoder else MATMUL_SEQUENCE_AXES
    add_matmul_quantizers_(model.get_submodule(name), name=name, axes=axes, factory=factory)
    for path in sites.residual_outputs:
        name = f"{layer}.{path}"
        output = QuantResidualOutput(model.get_submodule(name), name=name, factory=factory)
        model.set_submodule(name, output)
    for path in sites.branches:
        name = f"{layer}.{path}"
        add_residual_quantizers_(model.get_submodule(name), name=name, factory=factory)


def _has(model: nn.Module, path: str) -> bool:
    return any(name == path for name, _ in model.named_modules())


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
    """Return what passes activations on to `observe`, multiplied by their scales.

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
    sited: SitedModel,
    specs: Mapping[str, TensorSpec | None],
    ranges: Mapping[str, Range],
    scales: Mapping[str, Tensor] | None = None,
    weight_amax: Mapping[str, Tensor] | None = None,
    means: Mapping[str, Tensor] | None = None,
    roundings: Roundings | None = None,
) -> Iterator[None]:
    """Fake-quantize every site that has a spec.

    Args:
        sited: The model.
        specs: Specs of all sites, by name.
        ranges: Range of each activation whose spec is not dynamic, by site name.
        scales: `pre_quant_scale` by site name, `(channels,)`. Weights are divided by it, and so
            are inputs of residual adds after rounding.
        weight_amax: Ranges of weights that do not use their own, by site name. Shape `()` or
            `(channels,)`.
        means: Mean of the inputs of linear layers whose biases are corrected, by site name,
            `(channels,)`.
        roundings: How weights are rounded, where it is not to the nearest code.

    Raises:
        CalibrationError: An activation has a spec and no range.
    """
    scales, means = scales or {}, means or {}
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
            amax = (weight_amax or {}).get(site.name)
            # The range comes from the current values, so it cannot be out of date.
            weight = weight_of(sited.model, site.name)
            # Bit for bit what a quantizer does whose `pre_quant_scale` is the inverse.
            weight = weight if scale is None else weight * (1 / scale)
            rounds_up = rounding_of(roundings, site.name, weight.shape[1], specs)
            rounded = _rounded_weight(weight, spec, amax, rounds_up)
            actions[site.name] = _constant(rounded)
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
    """Add a shift to the bias of linear layers, by path, for as long as the context lasts."""
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
    """Return what codes of a weight stand for; the weight itself without a spec."""
    if spec is None:
        return weight
    codes, parameters = quantize_weight(weight, spec, amax, rounds_up)
    return dequantize(codes, parameters, spec).to(weight.dtype)


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
    return fake_quantize(x, dynamic_parameters(x, spec), spec)


def _same(x: Tensor) -> Tensor:
    return x


def _constant(value: Tensor) -> Action:
    # Rounded once: for a small model, rounding takes longer than the rest of a forward pass.
    return lambda _: value
