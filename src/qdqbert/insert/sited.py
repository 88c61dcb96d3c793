"""A model with a quantizer at every site of its family, and the ways to run it.

    with observing(sited, observe): ...                     # calibration
    with quantizing(sited, specs, ranges, scales): ...      # what INT8 will compute
    with marking(sited): ...                                # export: sites become nodes

Outside of these the model computes exactly what the float one did.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping

from torch import Tensor, nn

from qdqbert.checkpoint.families import Family, LayerSites
from qdqbert.errors import CalibrationError, CheckpointError
from qdqbert.insert.blocks import BLOCKS, quantized_block
from qdqbert.insert.factory import PLAIN, QuantizerFactory
from qdqbert.insert.modules import (
    ATTENTION,
    CROSS_SEQUENCE_AXES,
    MATMUL_SEQUENCE_AXES,
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
    clipped,
    dynamic_parameters,
    fake_quantize,
    parameters_of,
    weight_parameters,
)
from qdqbert.quantizers.export import mark
from qdqbert.quantizers.quantizer import Action, Quantizer
from qdqbert.spec import Range, Site, SiteGroup, TensorSpec, input_site_of, is_residual_input


@dataclasses.dataclass(frozen=True, kw_only=True)
class SitedModel:
    """A transformers model whose sites carry quantizers.

    Attributes:
        model: The model, in evaluation mode, changed in place.
        quantizers: By name of site, in the order of the forward pass's modules.
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
    """Puts a quantizer at every site of a family's layers; changes `model` in place.

    In a layer of BERT: 6 linears x (input, weight) + 4 inputs of the attention products + 2
    residual adds x 2 = 20, as QDQBERT; other families: `qdqbert.checkpoint.families`. And one for
    each embedding table. Names of parameters stay. All quantizers are disabled.

    Args:
        model: A transformers model.
        family: Where its sites stand.
        groups: Groups of sites that get quantizers, as `Recipe.groups`.
        factory: Makes the quantizers of layers.

    Raises:
        CheckpointError: The model holds no encoder layer of this family, or a group of sites is
            not known for it.
    """
    layers = encoder_layers(model, family)
    if not layers:
        raise CheckpointError(
            f"The model ({type(model).__name__}) holds no encoder layer of family "
            f"`{family.model_type}`; expected modules named like `{family.layer_example}`."
        )
    register_attention()
    model.config._attn_implementation = ATTENTION  # type: ignore[union-attr]
    if not sited_model(model).quantizers:  # a QDQBERT model has its own
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
    """Where a quantizer of a sited model stands."""
    assert quantizer.site is not None
    return quantizer.site


def sited_model(model: nn.Module) -> SitedModel:
    """A model that carries quantizers already."""
    return SitedModel(
        model=model,
        quantizers={
            module.site.name: module
            for module in model.modules()
            if isinstance(module, Quantizer) and module.site is not None
        },
    )


def encoder_layers(model: nn.Module, family: Family) -> list[str]:
    """Paths of the encoder layers, in order."""
    return [name for name, _ in model.named_modules() if family.is_layer(name)]


def _insert_in_layer_(
    model: nn.Module, layer: str, family: Family, factory: QuantizerFactory
) -> None:
    _insert_at_(model, layer, family.sites, factory)
    cross = family.cross_attention
    if cross is not None and _has(model, f"{layer}.{cross.attention}"):
        _insert_at_(model, layer, cross, factory)
    for path, module in list(model.get_submodule(layer).named_modules()):
        if type(module) in BLOCKS:
            model.set_submodule(f"{layer}.{path}".removesuffix("."), quantized_block(module))


def _insert_at_(model: nn.Module, layer: str, sites: LayerSites, factory: QuantizerFactory) -> None:
    for source, paths in sites.linears.items():
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
    """Shows every activation to `observe`, as it will be quantized; the model computes in float.

    Args:
        sited: The model.
        observe: Called with each activation's site and value.
        scales: `pre_quant_scale` of the sites that have one, by name, `(channels,)`.
    """
    last: list[tuple[Tensor, Tensor, Tensor]] = []

    def rescaled(x: Tensor, scale: Tensor) -> Tensor:
        # Query, key and value read one tensor by one scale: `observe` is given one object too.
        if not (last and last[0][0] is x and last[0][1] is scale):
            last[:] = [(x, scale, x * scale)]
        return last[0][2]

    def action(site: Site, scale: Tensor | None, x: Tensor) -> Tensor:
        observe(site, x if scale is None else rescaled(x, scale))
        return x

    with _acting(
        sited,
        {
            site.name: functools.partial(action, site, (scales or {}).get(site.name))
            if site.kind == "activation"
            else _same
            for site in sited.sites
        },
    ):
        yield


@contextlib.contextmanager
def quantizing(
    sited: SitedModel,
    specs: Mapping[str, TensorSpec | None],
    ranges: Mapping[str, Range],
    scales: Mapping[str, Tensor] | None = None,
    weight_amax: Mapping[str, Tensor] | None = None,
) -> Iterator[None]:
    """Fake-quantizes every site that has a spec.

    Args:
        sited: The model.
        specs: By site name, for every site.
        ranges: By site name, for every activation with a spec that is not dynamic.
        scales: `pre_quant_scale` by site name, `(channels,)`; weights, and inputs of residual
            adds after rounding, are divided by them.
        weight_amax: Of weights whose range is not their own, by site name, `()` or `(channels,)`.

    Raises:
        CalibrationError: An activation has a spec and no range.
    """
    scales = scales or {}
    actions: dict[str, Action] = {}
    for site in sited.sites:
        spec = specs[site.name]
        scaled = input_site_of(site.name) if site.kind == "weight" else site.name
        # A weight is divided where its input is multiplied, whether or not it is quantized itself.
        scale = scales.get(scaled) if specs.get(scaled) is not None else None
        if spec is None and scale is None:
            continue
        if site.kind == "weight":
            amax = (weight_amax or {}).get(site.name)
            weight = _prepared_weight(sited.model, site, spec, scale, amax)
            actions[site.name] = _constant(weight)
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
    with _acting(sited, actions):
        yield


@contextlib.contextmanager
def marking(sited: SitedModel) -> Iterator[None]:
    """Turns every site into a `qdqbert::Site` node of a graph that is being exported."""
    with _acting(
        sited, {site.name: functools.partial(mark, name=site.name) for site in sited.sites}
    ):
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


def linear_weights(sited: SitedModel) -> dict[str, Tensor]:
    """Weight `(out, in)` of each linear, by the name of its input's site."""
    return {
        name: weight_of(sited.model, name)
        for name in sited.quantizers
        if name.endswith("._input_quantizer")
    }


def weight_of(model: nn.Module, site_name: str) -> Tensor:
    """The weight of the module that a site of a linear or an embedding belongs to."""
    weight = model.get_submodule(site_name.rpartition(".")[0]).weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def _prepared_weight(
    model: nn.Module, site: Site, spec: TensorSpec | None, scale: Tensor | None, amax: Tensor | None
) -> Tensor:
    # The range of a constant is the constant's own, now: it cannot be stale.
    weight = weight_of(model, site.name)
    # As a quantizer with the inverse as its `pre_quant_scale`, to the last bit.
    weight = weight if scale is None else weight * (1 / scale)
    if spec is None:
        return weight
    weight = clipped(weight, amax, spec.axis)
    return fake_quantize(weight, weight_parameters(weight, spec, amax=amax), spec)


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
    # Rounded once: doing it in every forward pass costs more than the pass of a small model.
    return lambda _: value
