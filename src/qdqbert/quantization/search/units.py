"""Group sites into units that are quantized, or left in float, together."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from torch import Tensor

from qdqbert.common.choices import Granularity
from qdqbert.quantization.spec import (
    TensorSpec,
    input_site_of,
    is_linear_input,
    is_weight,
    weight_site_of,
)

# The path of the layer at the start of a site's name: `encoder.layer.3`, `layers.3`.
_LAYER = re.compile(r"(?:.*?\.)??[a-z_]+\.\d+(?=\.)")
_MATMUL = re.compile(r"\.matmul_[qkav]_input_quantizer$")

# Length of the text for which multiplications are counted. The share of attention grows with it.
_TOKENS = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """Sites that are quantized, or left in float, together.

    Attributes:
        name: Path of the layer or of the linear layer, or name of the site.
        cost: Multiplications for each token that are no longer int8 if the unit is left in float.
    """

    name: str
    sites: tuple[str, ...]
    cost: int


def make_units(
    specs: Mapping[str, TensorSpec | None],
    weights: Mapping[str, Tensor],
    granularity: Granularity = "linear",
) -> tuple[Unit, ...]:
    """Group the quantized sites of a model, in the order of the model.

    Args:
        specs: Spec of every site by name; `None` is float.
        weights: Weight `(out, in)` of each linear layer, by the site of its input.
        granularity: `layer` for all sites of an encoder layer; `linear` for the input and the
            weight of a linear layer; `site` for every site by itself. Sites that belong to no
            larger unit are units of their own.
    """
    groups: dict[str, list[str]] = {}
    for name, spec in specs.items():
        if spec is not None:
            groups.setdefault(_unit_of(name, granularity), []).append(name)
    return tuple(
        Unit(name=name, sites=tuple(sites), cost=_cost(sites, weights))
        for name, sites in groups.items()
    )


def int8_percent(specs: Mapping[str, TensorSpec | None], weights: Mapping[str, Tensor]) -> float:
    """Return the percentage of multiplications in int8 of a text of 128 tokens."""
    hidden = _hidden_size(weights)
    costs = {site: weight.numel() for site, weight in weights.items()}
    costs |= {site: _TOKENS * hidden // 2 for site in specs if _MATMUL.search(site)}
    # A linear layer is int8 if its input and its weight are.
    in_int8 = [
        cost
        for site, cost in costs.items()
        if specs.get(site) is not None
        and (site not in weights or specs.get(weight_site_of(site)) is not None)
    ]
    return 100 * sum(in_int8) / max(sum(costs.values()), 1)


def _unit_of(site: str, granularity: Granularity) -> str:
    layer = _LAYER.match(site)
    if granularity == "layer" and layer is not None:
        return layer.group()
    is_linear = layer is not None and (is_linear_input(site) or is_weight(site))
    if granularity != "site" and is_linear:
        return site.rpartition(".")[0]
    return site


def _cost(sites: list[str], weights: Mapping[str, Tensor]) -> int:
    hidden = _hidden_size(weights)
    linear = {input_site_of(site) for site in sites if is_linear_input(site) or is_weight(site)}
    cost = sum(weights[site].numel() for site in linear if site in weights)
    for site in sites:
        if _MATMUL.search(site):
            # A product has two inputs.
            cost += _TOKENS * hidden // 2
        elif input_site_of(site) not in weights:
            # A residual add or an embedding table: about a multiplication for each channel.
            cost += hidden
    return cost


def _hidden_size(weights: Mapping[str, Tensor]) -> int:
    return min(weight.shape[1] for weight in weights.values())
