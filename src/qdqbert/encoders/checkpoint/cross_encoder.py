"""Cross-encoders of sentence-transformers: their files, and their activation function.

Version 5.4 and later write modules.json and config_sentence_transformers.json, which names the
activation function. Versions 4 and 5 named it in config.json, in `sentence_transformers`, and
versions before in `sbert_ce_default_activation_function`. The head is transformers', or modules
after the encoder.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from qdqbert.common.choices import PoolingMode
from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import (
    CHAT_TEMPLATE,
    CONFIG,
    MODEL_SETTINGS,
    SETTINGS,
    TOKENIZER,
    TOKENIZER_CONFIG,
)
from qdqbert.common.json_files import parse_object, read_json
from qdqbert.data.tokenizing.tokenizer_files import read_tokenizer
from qdqbert.encoders.checkpoint.chat_template import Chat, template_source
from qdqbert.encoders.checkpoint.layout import (
    POOLING_CONFIG,
    Layout,
    PooledHead,
    begins_with_pooling,
    read_layout_fields,
    read_pooling,
    refuse_skipped_prompts,
)
from qdqbert.encoders.checkpoint.model_settings import ModelSettings
from qdqbert.encoders.checkpoint.sentence_files import FindFile, SentenceFiles, join, write_files
from qdqbert.encoders.checkpoint.sentence_modules import (
    MODULES_AFTER_POOLING,
    SCORES,
    SENTENCE,
    head_module,
    weights_of,
)
from qdqbert.encoders.config import Config
from qdqbert.encoders.model import Linear, Step
from qdqbert.encoders.task_kinds import (
    TASK_KINDS,
    TaskName,
    architectures_of,
    head_of,
    task_of_architecture,
)

Activation = Literal["sigmoid", "softmax", "none"]
"""A function that turns logits into scores."""

ACTIVATIONS: Mapping[str, Activation] = {
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Identity": "none",
}
"""The functions by the names of torch's classes.

Files name these by their path: torch.nn.modules.linear.Identity.
"""
_OLD_KEY = "sbert_ce_default_activation_function"
# Output of a language model that `LogitScore` reads.
LOGITS = "causal_logits"
# The weights that score the next token: of the decoder, or the table of words that it shares.
_DECODERS = ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
_LARGEST_ID = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class CrossEncoderFiles(Layout):
    """The files of a cross-encoder next to its model."""

    def write(self, folder: Path, *, hidden: int, find: FindFile) -> None:
        """Make a folder with the model or its graph readable by sentence-transformers."""
        del hidden, find
        # Without a task, sentence-transformers would load an encoder.
        defaults = {SETTINGS: json.dumps({"transformer_task": "sequence-classification"}) + "\n"}
        write_files(folder, [("Transformer", "")], {**defaults, **self.files})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreHead(PooledHead):
    """The modules of a cross-encoder after the encoder, which make scores of a pair."""

    @property
    def outputs(self) -> int:
        """The number of scores."""
        return int(self.modules[-1].config["out_features"])

    @property
    def task(self) -> TaskName:
        """The task: to rank by one score, or to choose among classes."""
        return "reranking" if self.outputs == 1 else "text-classification"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogitHead(ScoreHead):
    """The head of a language model that scores a pair by the token that follows it.

    The score is the logit of a token, or how far it is above another one's.

    Attributes:
        true_token_id: Id of the token whose logit counts.
        false_token_id: Id of the other token; `None` for none.
    """

    poolings: tuple[PoolingMode, ...] = ("lasttoken",)
    true_token_id: int
    false_token_id: int | None = None

    @property
    def outputs(self) -> int:
        """One score."""
        return 1

    @property
    def after_pooling(self) -> tuple[str, ...]:
        """The module that makes a score of the logits."""
        return ("LogitScore",)

    def steps(self, find: FindFile) -> tuple[Step, ...]:
        """Return the linear layer that makes the score of the last state, in float."""
        weights = weights_of(self.subfolder, find)
        if weights is None:
            raise CheckpointError("The language model has no weights. Download it again.")
        name = next((each for each in _DECODERS if each in weights), None)
        place = find(join(self.subfolder, CONFIG))
        config = {} if place is None else read_json(place)
        if (cap := config.get("final_logit_softcapping")) is not None:
            raise CheckpointError(
                f"{CONFIG} has final_logit_softcapping={cap!r}, which is not supported for "
                "rerankers: it has to be null."
            )
        is_shared = config.get("tie_word_embeddings") is not False
        if name is None or not (is_shared or name == _DECODERS[0]):
            raise CheckpointError(
                f"{str(weights.path)!r} has no `{_DECODERS[0]}`, which scores the next token, and "
                "its config.json does not say that the table of words does. Download or copy the "
                "checkpoint again."
            )
        rows = weights.shape(name)[0]
        ids = [self.true_token_id, self.false_token_id]
        largest = max(each for each in ids if each is not None)
        if largest >= rows:
            raise CheckpointError(
                f"The token {largest}, whose logit is the score, is none of the {rows} tokens of "
                f"{str(weights.path)!r}. Use the files of these weights."
            )
        weight = weights.read_row(name, self.true_token_id)
        if self.false_token_id is not None:
            weight = weight - weights.read_row(name, self.false_token_id)
        return (Linear(weight=weight[None], bias=np.zeros(1, np.float32)),)


def read_cross_encoder(files: SentenceFiles) -> CrossEncoderFiles | ScoreHead:
    """Read sentence-transformers' files of a cross-encoder, also without modules.json."""
    modules = files.modules or [("Transformer", "")]
    kinds = [kind for kind, _ in modules]
    if kinds == ["Transformer", "LogitScore"]:
        return _read_logit_head(files, *(path for _, path in modules))
    if kinds != ["Transformer"]:
        return _read_score_head(files)
    return CrossEncoderFiles(**read_layout_fields(files, modules[0][1], "classes", chats=True))


def _read_logit_head(files: SentenceFiles, encoder: str, path: str) -> LogitHead:
    """Return the head of a language model, whose settings are in the folder `path`."""
    fields = files.fields(path, CONFIG)
    name = fields.optional(fields.text, "module_input_name")
    if name not in (None, LOGITS):
        raise CheckpointError(
            f"{join(path, CONFIG)} has module_input_name={name!r}, which is not supported: the "
            f"module has to read {LOGITS!r}."
        )
    fields_of_layout = read_layout_fields(files, encoder, "next", chats=True)
    return LogitHead(
        true_token_id=fields.integer("true_token_id", 0, _LARGEST_ID),
        false_token_id=fields.optional(fields.integer, "false_token_id", 0, _LARGEST_ID),
        **fields_of_layout,
    )


def generator_head(
    files: SentenceFiles, architectures: object, task: str | None, name: str
) -> LogitHead | None:
    """Return the head of a language model without files of sentence-transformers, as it makes one.

    It compares the tokens "yes" and "no", and the tokenizer's chat template has to take pairs.

    `architectures` is the field of its config, `task` the one that was asked for, and `name` the
    user's for it.

    Returns:
        The head; `None` if it is no language model, or no reranker was asked for.

    Raises:
        CheckpointError: The tokenizer lacks these tokens, or has no chat template.
    """
    named = architectures_of(architectures)
    found = task_of_architecture(named[0]) if named else None
    if task != "reranking" or found is None or not TASK_KINDS[found].is_causal:
        return None
    tokenizer = files.find(TOKENIZER)
    known = None if tokenizer is None else read_tokenizer(tokenizer).tokenizer.token_to_id
    yes, no = (known and known(each) for each in ("yes", "no"))
    if yes is None or no is None:
        raise CheckpointError(
            f"{name!r} is a language model whose tokenizer has no tokens 'yes' and 'no', which a "
            "reranker compares. Save it with `CrossEncoder` of sentence-transformers and a "
            "`LogitScore` with the ids of its own tokens."
        )
    settings = parse_object(files.read(TOKENIZER_CONFIG) or "{}", TOKENIZER_CONFIG)
    if template_source(files.read, "", settings) is None:
        raise CheckpointError(
            f"{name!r} is a language model without a chat template, whose scores of pairs would be "
            f"almost random. Put the one that it was trained with into {CHAT_TEMPLATE} of a copy "
            "of the folder: it renders one message of the role 'query' and one of 'document'."
        )
    return LogitHead(
        true_token_id=yes,
        false_token_id=no,
        max_length=None,
        chat=Chat(),
        files={
            path: text
            for path in (MODEL_SETTINGS, CHAT_TEMPLATE)
            if (text := files.read(path)) is not None
        },
    )


def _read_score_head(files: SentenceFiles) -> ScoreHead:
    """Return the head of a cross-encoder."""
    kinds = files.kinds
    if not begins_with_pooling(kinds) or kinds[-1] != "Dense":
        raise CheckpointError(
            f"modules.json lists {', '.join(kinds)}; of cross-encoders only Transformer alone, "
            "with the head in the model, Transformer with LogitScore, and Transformer, Pooling and "
            f"then {', '.join(MODULES_AFTER_POOLING)}, ending with Dense, are supported."
        )
    fields, rest = read_pooling(files, chats=True)
    # Folders with graphs have no modules, so that nothing reads it there.
    del fields["files"][POOLING_CONFIG]
    last = len(rest) - 1
    found = tuple(
        head_module(
            kind, path, files.fields(path, CONFIG), result=SCORES if index == last else SENTENCE
        )
        for index, (kind, path) in enumerate(rest)
    )
    head = ScoreHead(modules=found, **fields)
    refuse_skipped_prompts(head)
    return head


def used_files(
    layout: object, config: Config, task: TaskName
) -> tuple[CrossEncoderFiles | None, tuple[str, ...]]:
    """Return the files of a cross-encoder if its head is used, and notices about them."""
    if head_of(task) != "text-classification":
        return None, ()
    found = layout if isinstance(layout, CrossEncoderFiles | ScoreHead) else None
    if len(config.class_names()) == 1:
        activation_of(config.values, found.settings if found else ModelSettings(), 1)
    files = found if isinstance(found, CrossEncoderFiles) else None
    if found is None or not found.default_prompt or found.chat is not None:
        return files, ()
    return files, (
        f"sentence-transformers puts the prompt {found.default_prompt!r} before the first text of "
        "each pair. qdqbert does not: add it to the data.",
    )


def task_of_files(architectures: Sequence[str], config: Config, files: object) -> TaskName | None:
    """Return the task of a checkpoint; `None` if its architecture is not known.

    The first of transformers' classes in `architectures` counts.
    """
    # Embedders were often trained from masked language models, which their configs still name.
    if isinstance(files, Layout) and files.task is not None:
        return files.task
    task = task_of_architecture(architectures[0]) if architectures else None
    if task == "text-classification" and is_reranker(config, files):
        return "reranking"
    return task


def is_reranker(config: Config, files: object) -> bool:
    """Return whether a text classifier is known to score pairs with one number."""
    is_known = isinstance(files, CrossEncoderFiles) or any(
        key in config for key in ("sentence_transformers", _OLD_KEY)
    )
    return is_known and len(config.class_names()) == 1


def activation_of(config: Mapping[str, Any], settings: ModelSettings, outputs: int) -> Activation:
    """Return the activation function from logits to scores that sentence-transformers chooses.

    Where no file names one, the output of a regression is the score, as in transformers.
    """
    older = config.get("sentence_transformers")
    if isinstance(older, Mapping) and "activation_fn" in older:
        named = older["activation_fn"]
    else:
        named = config.get(_OLD_KEY)
    for path in (settings.activation, named):
        # sentence-transformers runs no other code, and takes the default.
        if not isinstance(path, str) or not path.startswith("torch."):
            continue
        name = path.rpartition(".")[2]
        if name not in ACTIVATIONS:
            raise CheckpointError(
                f"The activation function {path} of this cross-encoder is not supported; expected "
                f"{', '.join(ACTIVATIONS)} of torch. With Identity in {MODEL_SETTINGS} of a copy, "
                "scores are logits."
            )
        return ACTIVATIONS[name]
    is_number = outputs > 1 or config.get("problem_type") == "regression"
    return "none" if is_number else "sigmoid"
