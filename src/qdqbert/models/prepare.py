"""`qdqbert.prepare`: puts quantizers into a float model, for a training loop of one's own."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel

from qdqbert.errors import SpecError, UnmatchedRuleError, UserInputError
from qdqbert.insert.sited import sited_model
from qdqbert.models.quantized import put_quantizers_in_, quantized_class
from qdqbert.recipes import QuantizerOptions

_ENDS = (
    "",
    *("._input_quantizer", "._weight_quantizer"),
    *(f".matmul_{letter}_input_quantizer" for letter in "qkva"),
    *(".add_local_input_quantizer", ".add_residual_input_quantizer"),
)
# Of names of modules, and of the quantizers that may stand there.

_Model = TypeVar("_Model", bound=nn.Module)


def prepare(
    model: _Model,
    recipe: str = "qdqbert",
    *,
    quantizer_options: QuantizerOptions | None = None,
    exclude: Sequence[str] = (),
) -> _Model:
    """Puts quantizers into a transformers model of any family; changes `model` in place.

    Then `qdqbert.calibrate(model, batches)`, and train as before. `save_pretrained` saves ranges
    with the weights; `qdqbert.quantize` and `qdqbert.evaluate` read the folder.

    Args:
        model: A float model of transformers.
        recipe: A name of `qdqbert.recipes.RECIPES`; `qdqbert` has 20 quantizers a layer.
        quantizer_options: Bits, patterns and calibrator.
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
    config: Any = model.config
    settings = {
        "placement": recipe,
        "quantizers": None,
        "recipe": None if quantizer_options is None else quantizer_options.to_dict(),
        "exclude": list(exclude) or None,
    }
    # What cannot be put in is found out on a model without weights.
    trial_config = copy.deepcopy(config)
    vars(trial_config).update(settings)
    float_class: Any = type(model)
    with torch.device("meta"):
        trial = float_class(trial_config)
    _check_patterns(trial, exclude)
    put_quantizers_in_(trial)
    vars(config).update(settings)
    put_quantizers_in_(model)
    # `save_pretrained` has to know of quantizers from here on.
    model.__class__ = quantized_class(float_class)
    return model


def _check_patterns(model: nn.Module, patterns: Sequence[str]) -> None:
    names = [name for name, _ in model.named_modules()]
    for pattern in patterns:
        try:
            found = any(re.search(pattern, f"{name}{end}") for name in names for end in _ENDS)
        except re.error as error:
            raise SpecError(f"{pattern!r} is no regular expression: {error}.") from error
        if not found:
            raise UnmatchedRuleError(
                f"`exclude` {pattern!r} matches no module of the model, such as `{names[-1]}`. "
                "Check its spelling."
            )
