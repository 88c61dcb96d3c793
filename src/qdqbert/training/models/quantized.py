"""Build, save and load a transformers model with quantizers, of any family.

config.json describes the quantizers (`recipe`, `quantizer_options`, `quantizers`). Their ranges are
stored in the safetensors file, next to the weights. transformers can load the folder without this
package: it gets the float model and reports the ranges as unused keys.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.calibration.reference.factory import PLAIN, QuantizerFactory
from qdqbert.calibration.reference.sited_model import SitedModel, sited_model
from qdqbert.common.errors import CheckpointError, SpecError, UserInputError
from qdqbert.encoders.checkpoint.configuration import quantizer_options_of, recipe_of
from qdqbert.encoders.checkpoint.description import check_positions
from qdqbert.encoders.checkpoint.load import Checkpoint, load_checkpoint
from qdqbert.encoders.checkpoint.weights import check_shapes
from qdqbert.encoders.families import quantized_family
from qdqbert.encoders.stored import BUFFERS, ENDS, check_format, quantizes_like_graphs, wrong_range
from qdqbert.quantization.recipes import QuantizerOptions, build_recipe
from qdqbert.quantization.spec import SiteGroup
from qdqbert.training.insert.modules import ATTENTION, register_attention
from qdqbert.training.insert.sited import insert_quantizers_
from qdqbert.training.models.state import (
    adjust_,
    calibrate_weights_,
    configure_,
    place_,
    restore_,
    stored_state,
)

_RANGES = tuple(f"_quantizer.{buffer}" for buffer in BUFFERS)
_LEARNED = tuple(f"_quantizer.{end}" for end in ENDS)


class QuantizedModel:
    """Adds quantizers to a class of transformers. It is first in the list of bases."""

    _keep_in_fp32_modules_strict = ("_quantizer",)
    _quantizer_factory: ClassVar[QuantizerFactory] = PLAIN

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let `forward` take its arguments by position too."""
        super().__init_subclass__(**kwargs)
        model_class: Any = cls
        names = [
            parameter.name
            for parameter in inspect.signature(model_class.forward).parameters.values()
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ][1:]
        # A base class such as `BertPreTrainedModel` has only torch's placeholder, without names.
        if "forward" not in vars(cls) and names:
            model_class.forward = _by_keyword(model_class.forward, names)

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        """Build the float model and insert quantizers.

        Args:
            config: Config of the float class. Its `recipe` names a recipe, and its
                `quantizer_options` change it; see `QDQBertConfig`.
            args: For the float class.
            kwargs: For the float class.

        Raises:
            CheckpointError: transformers cannot compute this model, or the config was written by a
                newer version.
        """
        check_positions(config)
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        put_quantizers_in_(self)

    def apply_quantizer_options(self, options: QuantizerOptions) -> None:
        """Set bits and disabled patterns of all quantizers. They are saved with the model.

        Missing options get their defaults. Ranges that still fit are kept. A calibrator takes
        effect at the next calibration.

        Raises:
            UnmatchedRuleError: A pattern matches no quantizer.
        """
        model: Any = self
        set_options_(model, options)

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Set the attention. Only the one with quantizers is accepted.

        Raises:
            UserInputError: Another attention is asked for.
        """
        if attn_implementation != ATTENTION:
            raise UserInputError(
                f"`attn_implementation={attn_implementation!r}` has no place for the quantizers of "
                f"the attention matmuls. Models with quantizers need {ATTENTION!r}.",
                argument="attn_implementation",
            )

    def save_pretrained(self, save_directory: str | Path, *args: Any, **kwargs: Any) -> None:
        """Save weights and ranges as safetensors, and config.json with the quantizers' state."""
        model: Any = self
        model.config.quantizers = stored_state(sited_model(model))
        super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a model by its float class, as the class of `prepare` is in no module."""
        made: Any = super().__reduce_ex__(protocol)
        model_class = vars(type(self)).get("_float_class", type(self))
        return (_new, (model_class,), *made[2:])

    @classmethod
    def from_pretrained(
        cls,
        *args: Any,
        output_loading_info: bool = False,
        ignore_mismatched_sizes: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load a float checkpoint, or one that a model with quantizers saved.

        Weights are float32, as in transformers 4, whatever the checkpoint stores: float16 cannot be
        trained. Pass `dtype` for another type, "auto" for the stored one.

        Raises:
            CheckpointError: The checkpoint belongs to another family, or a range is missing or
                cannot be used.
        """
        if "torch_dtype" not in kwargs:
            kwargs.setdefault("dtype", torch.float32)
        model, info = super().from_pretrained(  # type: ignore[misc]
            *args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
        )
        # transformers leaves missing tensors uninitialized, and drops unexpected ones.
        is_float = model.config.quantizers is None
        for keys, what in (("missing_keys", "lack"), ("unexpected_keys", "have unexpected")):
            ranges = sorted(key for key in info[keys] if key.endswith((*_RANGES, *_LEARNED)))
            # Of a float checkpoint, ranges of descriptors are missing.
            if ranges and not (is_float and keys == "missing_keys"):
                raise CheckpointError(
                    f"The checkpoint's weights {what} {len(ranges)} ranges, such as "
                    f"`{ranges[0]}`, which contradicts config.json. Save the model again with "
                    "`save_pretrained`, or calibrate the float checkpoint again."
                )
        # transformers' error names no weight, and ranges of another shape are never left out.
        name, wrong = model.config.name_or_path, info["mismatched_keys"]
        ranges = [each for each in wrong if each[0].endswith((*_RANGES, *_LEARNED))]
        check_shapes(name, ranges if ignore_mismatched_sizes else wrong)
        if is_float:
            factory_of(model).finish_loading(sited_model(model).quantizers.values())
        check_ranges(name, model)
        return (model, info) if output_loading_info else model

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and warn of weights that cannot be trained."""
        model: Any = self
        if mode and any(each.dtype == torch.float16 for each in model.parameters()):
            warnings.warn(
                "The weights are float16, which optimizers cannot train: the loss becomes NaN. "
                "Call `model.float()`, or load the checkpoint with `dtype=torch.float32`.",
                stacklevel=2,
            )
        return super().train(mode)  # type: ignore[misc, no-any-return]


def check_ranges(name: str, model: Any) -> None:
    """Refuse ranges and scales that a quantizer cannot use.

    `name` is that of the checkpoint, for messages.
    """
    for path, module in model.named_modules():
        if isinstance(module, Quantizer):
            for tensor, problem in module.problems_of(module.state_dict()).items():
                raise CheckpointError(wrong_range(f"{path}.{tensor}", problem, name))


def _new(model_class: Any) -> Any:
    """Return a model with quantizers, without its state, in a process that may have made none."""
    register_attention()
    quantized = quantized_class(model_class)
    return quantized.__new__(quantized)


def _by_keyword(forward: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """Pass positional arguments on by keyword, in the order of `names`.

    TorchScript's exporter passes every argument by position. transformers 5 then adds `use_cache`
    by keyword, so that `forward` would get it twice.
    """

    @functools.wraps(forward)
    def by_keyword(self: Any, *args: Any, **kwargs: Any) -> Any:
        if len(args) > len(names):
            return forward(self, *args, **kwargs)
        return forward(self, **dict(zip(names, args, strict=False)), **kwargs)

    return by_keyword


def put_quantizers_in_(model: Any) -> None:
    """Insert quantizers as the model's config describes them. They quantize from now on."""
    config, training = model.config, model.training
    check_format(vars(config))
    recipe, options, factory = recipe_of(config), quantizer_options_of(config), factory_of(model)
    stored, family = getattr(config, "quantizers", None), quantized_family(config.model_type)
    groups: tuple[SiteGroup, ...] = build_recipe(recipe or "full", embeddings=None).groups
    if quantizes_like_graphs(vars(config)):
        groups = ("table", *groups)
    sited = insert_quantizers_(model, family, groups, factory=factory)
    factory.enable(sited.quantizers.values())
    if recipe is not None or options is not None:
        configure_model_(sited, config, options or QuantizerOptions())
    if stored is not None:
        restore_(sited, stored)
    nn.Module.train(model, training)


def set_options_(model: Any, options: QuantizerOptions) -> None:
    """Change the quantizer options of a model and of its config."""
    config: Any = getattr(model, "config", None)
    sited = sited_model(model)
    configure_model_(sited, config, options)
    if options.recalibrate_weights:
        calibrate_weights_(sited)
    adjust_(sited, options)
    if hasattr(config, "quantizers"):
        config.quantizer_options = options.to_dict()


def configure_model_(sited: SitedModel, config: Any, options: QuantizerOptions) -> None:
    """Configure quantizers as the recipe in a config and the given options specify.

    Ranges that still fit are kept as they are.
    """
    recipe = recipe_of(config)
    if not quantizes_like_graphs(vars(config)):
        for name in ("weights_for", "embeddings"):
            if getattr(options, name) is not None:
                raise SpecError(
                    f"`{name}` applies to models of `qdqbert.prepare`. Other quantized models are "
                    f"trained with tables in float and all 8 bits of weights: pass `{name}` to "
                    "`qdqbert.quantize`.",
                    argument=name,
                )
    if recipe is None:
        configure_(sited, options)
    else:
        place_(sited, recipe, options, getattr(config, "exclude", None) or ())
    factory_of(sited.model).choose_calibrators(sited.quantizers.values(), options.calibrator)


def factory_of(model: Any) -> QuantizerFactory:
    """Return the factory of a model's quantizers."""
    factory: QuantizerFactory = getattr(type(model), "_quantizer_factory", PLAIN)
    return factory


@functools.cache
def quantized_class(float_class: Any) -> Any:
    """Return the class with quantizers for a class of transformers. It has the same name."""
    if issubclass(float_class, QuantizedModel):
        return float_class
    return type(
        float_class.__name__,
        (QuantizedModel, float_class),
        {
            "__module__": float_class.__module__,
            "__doc__": float_class.__doc__,
            "_float_class": float_class,
        },
    )


def class_for(float_class: Any, config: Any) -> Any:
    """Return the class that loads a checkpoint: with quantizers if its config describes some."""
    if getattr(config, "quantizers", None) is None:
        return float_class
    return quantized_class(float_class)


def load_model(
    name: str,
    *,
    task: str | None = None,
    new_head: Sequence[str] | None = None,
    pooling: str | None = None,
    adapter: str | None = None,
) -> Checkpoint:
    """Load a checkpoint, with quantizers if its config describes some. See `load_checkpoint`."""
    return load_checkpoint(
        name, task=task, class_for=class_for, new_head=new_head, pooling=pooling, adapter=adapter
    )
