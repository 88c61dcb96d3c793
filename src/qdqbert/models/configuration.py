"""The config of QDQBERT models: BERT's, and how its tensors are quantized."""

from __future__ import annotations

from typing import Any

from transformers import BertConfig

from qdqbert.errors import CheckpointError
from qdqbert.recipes import QuantizerOptions


class QDQBertConfig(BertConfig):  # type: ignore[misc]
    """Config of a BERT with a quantizer at each of the 20 sites a layer.

    Attributes:
        placement: Name of the recipe that says which quantizers there are; QDQBERT's if `None`.
        recipe: Options that differ from their defaults, see `QuantizerOptions.to_dict`; `None`
            leaves quantizers as `QuantLinear`'s default descriptors make them.
        quantizers: What a saved model's quantizers were, as `qdqbert.models.state` writes it;
            `None` for a float checkpoint.

    Source: transformers 4.40's `QDQBertConfig`. Mended: its `pad_token_id` of 1 is RoBERTa's; this
    has BERT's 0, and BERT's other defaults.
    """

    model_type = "qdqbert"

    placement: str | None = None
    recipe: dict[str, Any] | None = None
    quantizers: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Accepts a `QuantizerOptions` for `recipe` too."""
        if isinstance(self.recipe, QuantizerOptions):
            self.recipe = self.recipe.to_dict()
        super().__post_init__(**kwargs)

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As transformers; a BERT checkpoint's config is one of ours, without a warning.

        Raises:
            CheckpointError: The checkpoint is of another family.
        """
        values, rest = super().get_config_dict(*args, **kwargs)
        found = values.get("model_type", "bert")
        if found not in ("bert", cls.model_type):
            raise CheckpointError(
                f"QDQBERT takes BERT checkpoints, not `{found}`. `qdqbert.quantize` takes that "
                "family, if it is one of those that it lists."
            )
        return {**values, "model_type": cls.model_type}, rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As transformers; accepts a `QuantizerOptions` for `recipe` too."""
        if isinstance(kwargs.get("recipe"), QuantizerOptions):
            kwargs["recipe"] = kwargs["recipe"].to_dict()
        return super().from_dict(config_dict, **kwargs)

    @property
    def quantizer_options(self) -> QuantizerOptions | None:
        """The recipe as a value."""
        return quantizer_options_of(self)


def quantizer_options_of(config: Any) -> QuantizerOptions | None:
    """The switches that a config stores; `None` if it stores none."""
    stored = getattr(config, "recipe", None)
    return None if stored is None else QuantizerOptions.from_dict(stored)


def excluded_of(config: Any) -> list[str]:
    """The patterns of sites that a config leaves in float."""
    return list(getattr(config, "exclude", None) or ())
