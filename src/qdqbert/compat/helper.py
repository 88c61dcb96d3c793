"""Group and freeze parameters by regular expressions, and quantize weights in place.

Source: pytorch-quantization's `optim.helper`. Differs from upstream: groups are lists, which can be
read more than once; a group has each parameter once; a pattern that matches nothing is an error.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

_LOG = logging.getLogger(__name__)


def match_parameters(model: nn.Module, patterns: Sequence[str]) -> Iterator[nn.Parameter]:
    """Yield the parameters whose names match one of the patterns."""
    for name, parameter in model.named_parameters():
        if any(re.search(pattern, name) for pattern in patterns):
            yield parameter


def _matched(model: nn.Module, patterns: Sequence[str]) -> list[nn.Parameter]:
    for pattern in patterns:
        if not any(True for _ in match_parameters(model, [pattern])):
            raise ValueError(f"The pattern {pattern!r} matches no parameter of the model.")
    return list(match_parameters(model, patterns))


def group_parameters(
    model: nn.Module,
    patterns_list: Sequence[Sequence[str]],
    lrs: Sequence[float | None] | None = None,
    momentums: Sequence[float | None] | None = None,
    weight_decays: Sequence[float | None] | None = None,
) -> list[dict[str, Any]]:
    """Return parameter groups for an optimizer, one for each list of patterns.

    Raises:
        TypeError: `patterns_list` is not a list of lists, or another list differs in length.
        ValueError: A pattern matches nothing.
    """
    if not isinstance(patterns_list, list) or not all(
        isinstance(patterns, list) for patterns in patterns_list
    ):
        raise TypeError("patterns_list must be list of list of patterns")
    settings = {"lr": lrs, "momentum": momentums, "weight_decay": weight_decays}
    for name, values in zip(("lrs", "momentums", "weight_decays"), settings.values(), strict=True):
        if values is not None and len(values) != len(patterns_list):
            raise TypeError(f"len({name}) must match len(patterns_list)")
    groups: list[dict[str, Any]] = []
    for index, patterns in enumerate(patterns_list):
        group: dict[str, Any] = {"params": _matched(model, patterns)}
        for key, values in settings.items():
            if values is not None and values[index] is not None:
                group[key] = values[index]
        groups.append(group)
    return groups


def freeze_parameters(model: nn.Module, patterns: Sequence[str]) -> None:
    """Stop training parameters whose names match one of the patterns.

    Raises:
        ValueError: A pattern matches nothing.
    """
    for parameter in _matched(model, patterns):
        parameter.requires_grad = False


def quant_weight_inplace(model: nn.Module) -> None:
    """Replace each weight by its quantized values."""
    for name, module in model.named_modules():
        quantizer = getattr(module, "_weight_quantizer", None)
        weight = getattr(module, "weight", None)
        if quantizer is None or not isinstance(weight, torch.Tensor):
            continue
        if not quantizer.fake_quant:
            _LOG.warning(
                "In-place real quantization is VERY dangerous and should be used for inference "
                "only. Make sure that is the desired behavior."
            )
        _LOG.info("In-place quantize weight of %s", name)
        with torch.no_grad():
            weight.copy_(quantizer(weight))
