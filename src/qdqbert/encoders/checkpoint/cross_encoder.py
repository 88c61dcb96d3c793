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

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG, MODEL_SETTINGS, SETTINGS
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
from qdqbert.encoders.checkpoint.sentence_files import FindFile, SentenceFiles, write_files
from qdqbert.encoders.checkpoint.sentence_modules import (
    MODULES_AFTER_POOLING,
    SCORES,
    SENTENCE,
    head_module,
)
from qdqbert.encoders.config import Config
from qdqbert.encoders.task_kinds import TaskName, head_of, task_of_architecture

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


def read_cross_encoder(files: SentenceFiles) -> CrossEncoderFiles | ScoreHead:
    """Read sentence-transformers' files of a cross-encoder, also without modules.json."""
    modules = files.modules or [("Transformer", "")]
    if [kind for kind, _ in modules] != ["Transformer"]:
        return _read_score_head(files)
    return CrossEncoderFiles(**read_layout_fields(files, modules[0][1], "classes"))


def _read_score_head(files: SentenceFiles) -> ScoreHead:
    """Return the head of a cross-encoder."""
    kinds = files.kinds
    if "LogitScore" in kinds:
        raise CheckpointError(
            f"modules.json lists {', '.join(kinds)}: this cross-encoder scores a pair by the "
            "token that a causal language model predicts next, which is not supported."
        )
    if not begins_with_pooling(kinds) or kinds[-1] != "Dense":
        raise CheckpointError(
            f"modules.json lists {', '.join(kinds)}; of cross-encoders only Transformer alone, "
            "with the head in the model, and Transformer, Pooling and then "
            f"{', '.join(MODULES_AFTER_POOLING)}, ending with Dense, are supported."
        )
    fields, rest = read_pooling(files)
    # Folders with graphs have no modules, so that nothing reads it there.
    del fields["files"][POOLING_CONFIG]
    last = len(rest) - 1
    found = tuple(
        head_module(
            kind,
            path,
            files.fields(path, CONFIG),
            result=SCORES if index == last else SENTENCE,
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
    if found is None or not found.default_prompt:
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
