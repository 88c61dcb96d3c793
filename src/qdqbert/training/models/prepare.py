"""`qdqbert.prepare`: put quantizers into a float model of any family."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from qdqbert.calibration.reference.sited_model import sited_model
from qdqbert.common.errors import SpecError, UnmatchedRuleError, UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.common.options.quantizers import Quantizers
from qdqbert.encoders.stored import FORMAT
from qdqbert.quantization.recipes import QuantizerOptions
from qdqbert.training.models.quantized import put_quantizers_in_, quantized_class

_Model = TypeVar("_Model", bound=nn.Module)


@suggest_keywords
def prepare(
    model: _Model,
    recipe: str = "full",
    *,
    exclude: str | Sequence[str] = (),
    quantizers: Quantizers = Quantizers(),
) -> _Model:
    """Put quantizers into a transformers model of any family. Changes `model` in place.

    Then call `qdqbert.calibrate(model, batches)`, and train as before. `save_pretrained` saves
    ranges with the weights. `qdqbert.quantize` and `qdqbert.evaluate` read the folder.

    Patterns are regular expressions, searched in the names of quantizers and of the linear layers
    that these belong to. Disabling patterns apply first, then `quant_enable_layer_module`: together
    with `quant_disable`, only its modules are quantized.

    Args:
        model: A float model of transformers.
        recipe: Name of a recipe in `qdqbert.quantization.recipes.RECIPES`. `full` places QDQBERT's
            20 quantizers per layer. Embedding tables get one each, as graphs have them.
        exclude: Patterns of modules or quantizers that stay in float. Heads and poolers have no
            quantizers, but can be named.
        quantizers: Bits, patterns and ranges, as in `train`. What `quantize` makes of the model
            follows them, `weights_for` and `embeddings` too.

    Returns:
        The model, with the same parameters.

    Raises:
        SpecError: The model has quantizers already, an option does not apply here, or a pattern is
            not a regular expression.
        UserInputError: The recipe is unknown, or the model is not a transformers model.
        CheckpointError: The model's family is not supported.
        UnmatchedRuleError: A pattern matches nothing.
    """
    options = QuantizerOptions.from_dict(quantizers.given())
    return prepare_with_options(model, recipe, options, exclude=exclude)


def prepare_with_options(
    model: _Model, recipe: str, options: QuantizerOptions, *, exclude: str | Sequence[str] = ()
) -> _Model:
    """Put quantizers into a transformers model. See `prepare`."""
    if not isinstance(model, PreTrainedModel):
        raise UserInputError(
            f"`model` must be a transformers model, got {type(model).__name__}. Pass the model "
            "that yours contains.",
            argument="model",
        )
    if sited_model(model).quantizers:
        raise SpecError(
            f"The model ({type(model).__name__}) has quantizers already. Calibrate it, or load the "
            "float checkpoint again.",
            argument="model",
        )
    patterns = _compiled((exclude,) if isinstance(exclude, str) else exclude)
    config: Any = model.config
    settings = {
        "recipe": recipe,
        "quantizer_options": options.to_dict() or None,
        "exclude": [each.pattern for each in patterns] or None,
        "quantizers": None,
        "qdqbert_format": FORMAT,
    }
    # Errors are found on a copy without weights, so that the model stays as it was.
    trial_config = copy.deepcopy(config)
    vars(trial_config).update(settings)
    float_class: Any = type(model)
    with torch.device("meta"):
        trial = float_class(trial_config)
    put_quantizers_in_(trial)
    _check_matches(trial, patterns)
    vars(config).update(settings)
    put_quantizers_in_(model)
    # From here on, `save_pretrained` has to save quantizers too.
    model.__class__ = quantized_class(float_class)
    return model


def _compiled(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise SpecError(
                f"`exclude` {pattern!r} is not a regular expression: {error}.", argument="exclude"
            ) from error
    return compiled


def _check_matches(model: nn.Module, patterns: Sequence[re.Pattern[str]]) -> None:
    names = [name for name, _ in model.named_modules()]
    for each in patterns:
        if not any(each.search(name) for name in names):
            raise UnmatchedRuleError(
                f"`exclude` {each.pattern!r} matches no module of the model, such as "
                f"`{names[-1]}`. Check its spelling.",
                argument="exclude",
            )
