"""A family of models as data: readers of its encoder and of its heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.config import Config
from qdqbert.encoders.layer_sites import TrainingSites
from qdqbert.encoders.model import Convolution, Embeddings, Head, Layer, Norm, Table
from qdqbert.encoders.reader import Reader
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.encoders.weights import Conversion, Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder:
    """A model without its heads.

    Attributes:
        embeddings: Token ids to hidden states.
        limit: Longest text in tokens.
        final_norm: LayerNorm after the last layer; `None` if layers end with one.
        convolution: Convolution whose output is added to the states after the first layer, if any.
    """

    embeddings: Embeddings
    layers: tuple[Layer, ...]
    limit: int
    final_norm: Norm | None = None
    convolution: Convolution | None = None

    @property
    def has_token_types(self) -> bool:
        """Whether it has a table of token types with more than one row."""
        types = self.embeddings.token_types
        return types is not None and len(types.rows) > 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """The inputs of a reader of heads.

    Attributes:
        root: Reader of the whole checkpoint.
        body: Reader of the encoder.
    """

    root: Reader
    body: Reader
    encoder: Encoder

    @property
    def config(self) -> Config:
        """The checkpoint's config."""
        return self.root.config

    @property
    def hidden(self) -> int:
        """Channels of the hidden states."""
        layers, words = self.encoder.layers, self.encoder.embeddings.words
        return len(layers[-1].attention.output.bias) if layers else words.rows.shape[1]


def with_words(parts: Parts, words: Table) -> Parts:
    """Return parts with another table of words, for decoders that share the stored table."""
    embeddings = dataclasses.replace(parts.encoder.embeddings, words=words)
    encoder = dataclasses.replace(parts.encoder, embeddings=embeddings)
    return dataclasses.replace(parts, encoder=encoder)


def longest_text(embeddings: Embeddings) -> int:
    """Return the number of tokens that have a position in the table.

    A row belongs to padding if the family counts other tokens only.
    """
    assert embeddings.positions is not None
    first = embeddings.first_position + (embeddings.padding_id is not None)
    return len(embeddings.positions.rows) - first


ReadHead = Callable[[Parts], tuple[Head, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heads:
    """What reads the heads of a family; `None` for those that it does not have.

    A field has the name of `TaskKind.reader`.
    """

    answer: ReadHead | None = None
    choose: ReadHead | None = None
    classify: ReadHead | None = None
    classify_tokens: ReadHead | None = None
    fill_mask: ReadHead | None = None
    follow: ReadHead | None = None

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks whose head is read."""
        return tuple(name for name in TASK_KINDS if self.of(name) is not None)

    def of(self, task: str) -> ReadHead | None:
        """Return what reads the head of a task."""
        reader = TASK_KINDS[task].reader
        return None if reader is None else getattr(self, reader)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models.

    Attributes:
        model_type: transformers' name of the family, as in `config.json`.
        prefix: Name of the encoder in classes with a head: "bert" in `BertForMaskedLM`.
        encoder_class: transformers' auto class of the encoder alone.
        first: A tensor of the encoder, by which its place in the file is found.
        code: Names of classes outside of transformers that compute the same, which checkpoints name
            in `auto_map`. They are not run.
        code_config: Name of the class of their config, if other code has classes of the same names.
        defaults: What fields are that a config lacks, as in transformers' class. All fields that
            readers use are in it.
        code_defaults: What fields are in these classes, if they differ from transformers'.
        fields: Names of the config's fields in older files, and today's, which count before them.
        aliases: Other names of the config's fields, which count before their own ones, as in
            `attribute_map` of transformers' classes.
        conversion: Names of the tensors in older files, and today's.
        lacking: What its models with other heads have that no engine computes, if anything.
        embedding: Reads token states and their embedding, if the family's encoders end with a way
            of their own to make it; `None` if it is the user's choice.
        projects_states: Whether embedders may have a linear layer next to the encoder, on the state
            of each token.
        nested: Field of the config with the fields of this model, in files of a larger one.
        others: First parts of the names of tensors of a larger model's other parts, or of the
            family's own heads.
        fills_texts: Whether texts are filled up to the longest length with the padding token, which
            tokens attend to.
        masks_queries: Whether a token that no token attends to has no state of its own: its
            embedding is 0, or it attends to no token itself.
        skips_padding: Whether its text classifiers read the last token other than the padding
            token, which can differ from the last token.
        positions_follow: Token id after which positions are numbered: the id of the config's
            padding token, or a fixed one. `None` if positions start at the first row of their
            table.
        training: Where quantizers are inserted into transformers' model; `None` if it gets none.
        is_quantized: Whether `quantize` takes its checkpoints, and not `load` alone.
        quantized_fields: Fields of its configs, with the only values that `quantize` takes.
    """

    model_type: str
    prefix: str
    encoder: Callable[[Reader], Encoder]
    heads: Heads = Heads()
    lacking: str | None = None
    embedding: ReadHead | None = None
    encoder_class: str = "AutoModel"
    first: str = "embeddings.word_embeddings.weight"
    code: tuple[str, ...] = ()
    code_config: str | None = None
    code_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any]
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    conversion: Conversion | None = None
    projects_states: bool = False
    nested: str | None = None
    others: tuple[str, ...] = ()
    fills_texts: bool = False
    masks_queries: bool = False
    skips_padding: bool = False
    positions_follow: int | Literal["padding"] | None = None
    training: TrainingSites | None = None
    is_quantized: bool = True
    quantized_fields: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def is_of_last_token(self, task: str) -> bool:
        """Return whether the head of a task reads the last token other than the padding token."""
        kind = TASK_KINDS[task]
        return self.skips_padding and kind.has_classes and not kind.of_tokens

    def longest_input(self, config: Any) -> int | None:
        """Return the longest input that the table of positions allows; `None` if unlimited.

        `config` is transformers'.

        Raises:
            CheckpointError: The config does not name the padding token that positions follow.
        """
        rows = getattr(config, "max_position_embeddings", None)
        before = self.positions_follow
        if before == "padding":
            before = config.pad_token_id
            if before is None:
                raise CheckpointError(
                    f"config.json has no `pad_token_id`, after which `{self.model_type}` numbers "
                    "positions. Add the tokenizer's `pad_token_id`."
                )
        return rows if not rows or before is None else int(rows - (before + 1))

    def other_code(self, values: Mapping[str, Any]) -> str | None:
        """Return the class in `auto_map` that is not this family's, if any.

        `values` is the content of config.json. Classes of other heads, of which published configs
        have many, count only if neither the encoder's class nor the checkpoint's own is named.
        """
        auto_map, own = values.get("auto_map"), values.get("architectures")
        is_known = self.code_config in (None, _class_of(auto_map, "AutoConfig"))
        known = self.code if is_known else ()
        named = auto_map.items() if isinstance(auto_map, Mapping) else ()
        models = {auto: str(path) for auto, path in named if auto.startswith("AutoModel")}
        own = own if isinstance(own, list) else [own]
        used = [
            path
            for auto, path in models.items()
            if auto == "AutoModel" or path.rpartition(".")[2] in own
        ]
        counted = used or models.values()
        return next((path for path in counted if path.rpartition(".")[2] not in known), None)

    def complete(self, config: Config) -> Config:
        """Return a config with all fields that readers use, under today's names.

        Raises:
            CheckpointError: Layers have settings of their own, or weights are quantized.
        """
        if "per_layer_config" in config:
            raise config.refuse("per_layer_config", "all layers need the same settings.")
        if "quantization_config" in config:
            raise config.refuse("quantization_config", "float weights are needed.")
        own = config.values if self.nested is None else self._inner(config, self.nested)
        old, other = self.of_own_code(own), _renamed(own, self.aliases)
        return dataclasses.replace(config, values={**self.defaults, **old, **own, **other})

    def _inner(self, config: Config, name: str) -> dict[str, Any]:
        """Return the values of a config with those of a field in it, which count first."""
        own, older = (config.values.get(each) or {} for each in (name, f"{name}_dict"))
        if not isinstance(own, Mapping) or not isinstance(older, Mapping):
            raise config.refuse(name, "expected an object with the fields of the text model.")
        # transformers fills the older field with defaults.
        inner = {**own, **({**self.defaults, **older} if older else {})}
        outer = ("architectures", "model_type", "projection_dim")
        return {**config.values, **{key: inner[key] for key in inner if key not in outer}}

    def of_own_code(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the fields of the family's own code say, under transformers' names.

        `values` is the content of config.json.
        """
        is_own = values.get("model_type") != self.model_type
        return {**(self.code_defaults if is_own else {}), **_renamed(values, self.fields)}

    def read(self, weights: Weights, config: Config, *, has_head: bool) -> Parts:
        """Read the encoder.

        `config` is what `complete` returns. Modules of the encoder of a model with a head have a
        prefix.

        Raises:
            CheckpointError: A tensor or a field is missing or wrong, or is of a kind that is not
                supported.
        """
        if self.conversion is not None:
            weights = weights.converted(self.conversion)
        root = Reader(weights=weights, config=config)
        body = root.at(self.prefix)
        if not body.has(self.first):
            body = dataclasses.replace(body, path="")
        if not has_head:
            body = dataclasses.replace(body, module="")
        return Parts(root=root, body=body, encoder=self.encoder(body))


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {new: values[name] for name, new in names.items() if name in values}


FLASH = "XLMRobertaFlashConfig"
"""Class of the config of Jina's XLM-R, whose code has names of its own for the tensors."""

FLASH_CODE = (
    "XLMRobertaLoRA",
    *(f"XLMRoberta{end}" for end in ("Model", "ForMaskedLM", "ForPreTraining")),
    "XLMRobertaForSequenceClassification",
)
"""Classes of that code."""

JINA_V5 = "JinaEmbeddingsV5Model"
"""Class of Jina's code that puts adapters of PEFT on EuroBERT, or on Qwen3 in a larger model."""

# Jina's models say that they are BERT or XLM-R, and have other positions.
_BY_POSITIONS = {("bert", "alibi"): "jina-bert", ("xlm-roberta", "rotary"): "jina_embeddings_v3"}


def family_name(values: Mapping[str, Any]) -> Any:
    """Return the name of a config's family: its `model_type` if it is a model of transformers.

    `values` is the content of config.json, which may be wrong.
    """
    kind = values.get("model_type")
    if not kind and _class_of(values.get("auto_map"), "AutoConfig") == FLASH:
        kind = "xlm-roberta"
    if is_jina_v5(values) and values.get("is_decoder") is False:
        kind = "eurobert"
    if kind == "bert" and _is_mosaic(values):
        kind = "mosaic-bert"
    positions = values.get("position_embedding_type")
    return _BY_POSITIONS.get((str(kind), str(positions)), kind)


def is_flash(values: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint of Jina's XLM-R has the tensors of its own code."""
    has_own = _class_of(values.get("auto_map"), "AutoConfig") == FLASH
    return has_own or family_name(values) != values.get("model_type")


def is_jina_v5(values: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is Jina's model with an adapter for each of its `task_names`."""
    named = values.get("architectures")
    own = _class_of(values.get("auto_map"), "AutoModel") == JINA_V5
    return own or (isinstance(named, list) and JINA_V5 in named)


def _is_mosaic(values: Mapping[str, Any]) -> bool:
    """Return whether a model that says that it is BERT is MosaicBERT.

    Its config has a field of its own, and its classes are in a module of their own.
    """
    auto_map = values.get("auto_map")
    named = auto_map.values() if isinstance(auto_map, Mapping) else ()
    modules = (str(path).rpartition("--")[2].partition(".")[0] for path in named)
    return "alibi_starting_size" in values or "bert_layers" in modules


def _class_of(auto_map: Any, auto: str) -> str | None:
    """Return the name of the class that a config's `auto_map` has for one of transformers'."""
    path = auto_map.get(auto) if isinstance(auto_map, Mapping) else None
    return path.rpartition(".")[2] if isinstance(path, str) else None
