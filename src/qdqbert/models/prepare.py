"""`qdqbert.prepare`: puts quantizers into a float model, for a training loop of one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from qdqbert.errors import SpecError, UnmatchedRuleError, UserInputError
from qdqbert.insert.sited import SitedModel, sited_model
from qdqbert.models.quantized import put_quantizers_in_, quantized_class
from qdqbert.recipes import Switches, build_recipe

_Model = TypeVar("_Model", bound=nn.Module)


def prepare(
    model: _Model,
    recipe: str = "qdqbert",
    *,
    switches: Switches | None = None,
    exclude: Sequence[str] = (),
) -> _Model:
    """Puts quantizers into a transformers model of any family; changes `model` in place.

    Then `qdqbert.calibrate(model, batches)`, and train as before. `save_pretrained` saves ranges
    with the weights; `qdqbert.quantize` and `qdqbert.evaluate` read the folder.

    Args:
        model: A float model of transformers.
        recipe: `qdqbert` (20 quantizers a layer), `linear`, `linear-signed` or `qordered`.
        switches: Bits, patterns and calibrator.
        exclude: Regular expressions: what they find in names of modules or quantizers stays in
            float. Heads, poolers and embeddings have no quantizers, and may be named all the same.

    Returns:
        The model, with the same parameters.

    Raises:
        SpecError: It has quantizers already, or a pattern is no regular expression.
        UserInputError: The recipe is unknown, or the model is none of transformers.
        CheckpointError: Its family is unknown.
        UnmatchedRuleError: A pattern finds nothing.
    """
    if not isinstance(model, PreTrainedModel):
        raise UserInputError(
            f"`model` must be a model of transformers, got {type(model).__name__}. Pass the model "
            "that is inside of yours."
        )
    if sited_model(model).quantizers:
        raise SpecError(
            f"The model ({type(model).__name__}) has quantizers already. Calibrate it, or load the "
            "float checkpoint anew."
        )
    build_recipe(recipe)
    config: Any = model.config
    before = {name: getattr(config, name, None) for name in ("placement", "recipe", "quantizers")}
    config.placement, config.quantizers = recipe, None
    config.recipe = None if switches is None else switches.to_dict()
    try:
        put_quantizers_in_(model)
        _leave_out(sited_model(model), exclude)
    except Exception:
        for name, value in before.items():
            setattr(config, name, value)
        raise
    # `save_pretrained` has to know of quantizers from here on.
    float_class: Any = type(model)
    model.__class__ = quantized_class(float_class)
    return model


def _leave_out(sited: SitedModel, patterns: Sequence[str]) -> None:
    modules = [name for name, _ in sited.model.named_modules()]
    for pattern in patterns:
        try:
            found = [name for name in sited.quantizers if re.search(pattern, name)]
        except re.error as error:
            raise SpecError(f"{pattern!r} is no regular expression: {error}.") from error
        if not any(re.search(pattern, name) for name in modules):
            raise UnmatchedRuleError(
                f"`exclude` {pattern!r} matches no module of the model, such as "
                f"`{next(iter(sited.quantizers))}`. Check its spelling."
            )
        for name in found:
            sited.quantizers[name].disable()
