"""The config class of QDQBERT models, and the fields of config.json for quantizers."""

from __future__ import annotations

import copy
from typing import Any

import transformers

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.adapters import ADAPTER_FIELDS
from qdqbert.encoders.families.bert import QDQBERT as FAMILY
from qdqbert.encoders.stored import QDQBERT_FORMAT, check_format
from qdqbert.quantization.recipes import QuantizerOptions

QDQBERT = FAMILY.model_type


class QDQBertConfig(transformers.BertConfig):  # type: ignore[misc]
    """Config of a BERT model with 20 quantizers per layer.

    Attributes:
        recipe: Name of the recipe that places the quantizers. `None` places QDQBERT's, as the
            default descriptors of `QuantLinear` specify them.
        quantizer_options: Options that differ from their defaults, see `QuantizerOptions.to_dict`.
            A `QuantizerOptions` is accepted too. `None` leaves quantizers as they were placed.
        exclude: Regular expressions. Sites that one of them finds stay in float.
        quantizers: State of the quantizers of a saved model, as `qdqbert.training.models.state`
            writes it. `None` for a float checkpoint.
        qdqbert_format: Version of these keys.

    Source: transformers 4.40's `QDQBertConfig`. Differs from upstream: `pad_token_id` is BERT's 0
    instead of RoBERTa's 1, and so are the other token ids.
    """

    model_type = QDQBERT

    recipe: str | None = None
    quantizer_options: dict[str, Any] | None = None
    exclude: list[str] | None = None
    quantizers: dict[str, Any] | None = None
    qdqbert_format: int = QDQBERT_FORMAT

    def __post_init__(self, **kwargs: Any) -> None:
        """Accept a `QuantizerOptions`."""
        if isinstance(self.quantizer_options, QuantizerOptions):
            self.quantizer_options = self.quantizer_options.to_dict()
        super().__post_init__(**kwargs)
        check_format(vars(self))

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a config as transformers does. A config of a BERT checkpoint is accepted.

        Raises:
            CheckpointError: The checkpoint belongs to another family.
        """
        values, rest = super().get_config_dict(*args, **kwargs)
        found = values.get("model_type", "bert")
        if found not in ("bert", cls.model_type):
            raise CheckpointError(
                f"QDQBERT models load BERT checkpoints, not `{found}`. For another family, call "
                "`qdqbert.prepare` on its float model, or `qdqbert.quantize` on its folder."
            )
        return {**values, "model_type": cls.model_type}, rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a config from a dict. `quantizer_options` may be a `QuantizerOptions`."""
        if isinstance(kwargs.get("quantizer_options"), QuantizerOptions):
            kwargs["quantizer_options"] = kwargs["quantizer_options"].to_dict()
        return super().from_dict(config_dict, **kwargs)


def register_config() -> None:
    """Register the class with transformers' `AutoConfig` and `AutoTokenizer`. Can be repeated."""
    transformers.AutoConfig.register(QDQBERT, QDQBertConfig, exist_ok=True)
    transformers.AutoTokenizer.register(
        QDQBertConfig,
        slow_tokenizer_class=transformers.BertTokenizer,
        fast_tokenizer_class=transformers.BertTokenizerFast,
        exist_ok=True,
    )


def config_of_graph(config: Any) -> Any:
    """Return the config of a model without quantizers: BERT's for QDQBERT's, which others know.

    It names no adapters: the one that was chosen is part of the weights.
    """
    if config.model_type != QDQBERT:
        found = copy.deepcopy(config)
        for name in ADAPTER_FIELDS:
            found.__dict__.pop(name, None)
        return found
    own = {*QDQBertConfig().to_dict()} - {*transformers.BertConfig().to_dict()}
    values = {name: value for name, value in config.to_dict().items() if name not in own}
    names = [each.removeprefix("QDQ") for each in values.get("architectures") or ()]
    values |= {"model_type": "bert", "architectures": names}
    return transformers.BertConfig.from_dict(values)


def recipe_of(config: Any) -> str | None:
    """Return the name of the recipe that placed a model's quantizers, if one did."""
    name = getattr(config, "recipe", None)
    return name if isinstance(name, str) else None


def quantizer_options_of(config: Any) -> QuantizerOptions | None:
    """Return the quantizer options that a config stores, if any."""
    stored = getattr(config, "quantizer_options", None)
    return None if stored is None else QuantizerOptions.from_dict(stored)
