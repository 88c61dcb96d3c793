"""The source of an export: a graph of a folder that `quantize` wrote, and its settings."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from qdqbert.common.choices import EngineName, ExportedOutputs, TargetName
from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.pair_template import PairTemplate
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.cross_encoder import Activation
from qdqbert.encoders.checkpoint.model_settings import ModelSettings
from qdqbert.encoders.checkpoint.own_layers import package_of
from qdqbert.encoders.checkpoint.sentence import SentenceHead, read_sentence_head
from qdqbert.encoders.checkpoint.sentence_files import SentenceFiles
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.runtime.artifact import Artifact, open_artifact
from qdqbert.tasks.text_classification import usual_function

LAST_HIDDEN_STATE: Literal["last_hidden_state"] = "last_hidden_state"
SENTENCE_EMBEDDING: Literal["sentence_embedding"] = "sentence_embedding"

# A name also names a folder, and is a part of addresses.
_NAME = re.compile(r"[A-Za-z0-9._-]+")

WHOLE_TEXTS = tuple(name for name, kind in TASK_KINDS.items() if kind.is_of_whole_texts)
"""Tasks whose models make one result of each text or pair."""

TASKS = tuple(
    name
    for name, kind in TASK_KINDS.items()
    if name in WHOLE_TEXTS or (kind.of_tokens and kind.has_head and not kind.predicts_words)
)
"""Tasks whose models can be exported: also those that make a result of each token of a text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A graph to export.

    Attributes:
        engine: Engine that its results are compared on.
        outputs: Names of the graph's outputs to export.
        head: Pooling of an embedder; `None` if the folder has none.
        settings: Prompts and other settings of sentence-transformers.
        name: Name of the model in a server.
        pairs: Whether the caller says that the model takes pairs of texts.
    """

    artifact: Artifact
    engine: EngineName
    target: str
    outputs: tuple[str, ...]
    head: SentenceHead | None
    settings: ModelSettings
    name: str
    pairs: bool = False

    @property
    def graph(self) -> Path:
        """The .onnx file."""
        return self.artifact.model_for(self.engine, self.target)

    @property
    def is_embedder(self) -> bool:
        """Whether the model makes embeddings."""
        return TASK_KINDS[self.artifact.task].vectors == "sentence"

    @property
    def is_of_whole_texts(self) -> bool:
        """Whether an input gets one result, and not one for each token."""
        return self.artifact.task in WHOLE_TEXTS

    @property
    def takes_pairs(self) -> bool:
        """Whether an input is a pair of texts."""
        if self.is_embedder:
            return False
        if self.pairs or TASK_KINDS[self.artifact.task].takes_pairs:
            return True
        if not self.is_of_whole_texts:
            return False
        # Without the key, a model with one output is a reranker, as for `load`.
        usual = self.labels == 1 and not self.is_regression
        return usual if self.artifact.takes_pairs is None else self.artifact.takes_pairs

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the exported model's inputs."""
        return ("text", "text_pair") if self.takes_pairs else ("text",)

    @property
    def is_reranker(self) -> bool:
        """Whether the model gives each pair of texts a single score, a sigmoid."""
        if self.artifact.task == "reranking":
            return True
        is_scorer = self.is_of_whole_texts and self.labels == 1 and not self.is_regression
        return self.takes_pairs and is_scorer

    @property
    def is_regression(self) -> bool:
        """Whether the outputs of a classifier are numbers, and not logits."""
        return self.config.get("problem_type") == "regression"

    @property
    def function(self) -> Activation:
        """The function from logits to scores, of the pipelines of transformers and of `load`."""
        return usual_function(self.config)

    @property
    def prompt(self) -> str:
        """Text that `load` puts before each text by default; empty for none."""
        return self.settings.default_prompt if self.is_embedder else ""

    @property
    def labels(self) -> int:
        """Number of classes."""
        return len(self.config["id2label"])

    @property
    def config(self) -> Mapping[str, Any]:
        """Content of config.json, with a name for each class."""
        return self.artifact.read_config()

    @property
    def input_notices(self) -> list[str]:
        """Notices for the user about the texts that the exported model takes."""
        return [*self._prompt_notices, *self._pair_notices]

    @property
    def _prompt_notices(self) -> list[str]:
        prompt = self.settings.default_prompt
        if not (self.is_reranker and prompt):
            return []
        return [
            f"`load` puts the prompt {prompt!r} before each query. The exported model does not: "
            "add it to the queries."
        ]

    @property
    def _pair_notices(self) -> list[str]:
        """Notices about a classifier that may take the other kind of input."""
        if self.artifact.task != "text-classification" or self.pairs:
            return []
        is_known = self.artifact.takes_pairs is not None
        # A reranker that was calibrated on single texts looks like a model of single texts.
        if is_known and (self.takes_pairs or self.labels > 1 or self.is_regression):
            return []
        why = "as it was quantized on them" if is_known else "as `quantize` had no data of yours"
        if self.takes_pairs:
            kind, otherwise = "pairs of texts", "For single texts, quantize it on some of your own."
        else:
            kind, otherwise = "single texts", "For pairs, pass `pairs=True`."
        return [f"The exported model takes {kind}, {why}. {otherwise}"]

    @property
    def states_notices(self) -> list[str]:
        """Notices about states of tokens, for users of a format without a mask."""
        if LAST_HIDDEN_STATE not in self.outputs:
            return []
        notice = (
            f"Rows of {LAST_HIDDEN_STATE} are as long as the longest text: padding is at the end."
        )
        if self.head is None:
            notice += (
                " The model says nothing about its pooling. If you name one when you quantize it, "
                "the graph makes embeddings."
            )
        return [notice]

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, which cuts texts to the folder's length."""
        return Tokenizer.from_folder(self.artifact.directory, max_length=self.artifact.max_length)


def open_source(
    folder: Path,
    engine: EngineName,
    *,
    target: TargetName | None,
    returns: ExportedOutputs | None,
    default: ExportedOutputs,
    name: str | None,
    pairs: bool = False,
    tasks: Sequence[str] = TASKS,
) -> Source:
    """Read a folder, and choose its graph and its outputs.

    Args:
        folder: The folder.
        engine: Engine whose graphs the format takes.
        target: Target of the graph, if the folder has several.
        returns: Outputs of an embedder.
        default: Outputs of an embedder by default.
        name: Name of the model in a server; the folder's by default.
        pairs: Whether the caller says that a classifier takes pairs of texts.
        tasks: Tasks that the format has a place for.

    Raises:
        CheckpointError: `quantize` did not write the folder.
        UserInputError: The folder has no such graph or output, or another task, or a chat template,
            or is an embedder and has to take pairs.
    """
    artifact = open_artifact(folder)
    if artifact.task not in tasks:
        raise UserInputError(
            f"{str(folder)!r} was quantized for task {artifact.task!r}. `export` writes models for "
            f"{', '.join(tasks)} in this format.",
            argument="model",
        )
    if (package := package_of(artifact.read_config())) is not None:
        raise UserInputError(
            f"{str(folder)!r} is a model of {package}, whose layers after the graph no format of "
            "`export` has a place for. Run it with `load` or `serve`.",
            argument="model",
        )
    if PairTemplate.of_folder(folder) is not None:
        raise UserInputError(
            f"{str(folder)!r} puts pairs of texts into a chat template, which no format of "
            "`export` has a place for. Run it with `load` or `serve`.",
            argument="model",
        )
    if pairs and (
        artifact.task not in WHOLE_TEXTS or TASK_KINDS[artifact.task].vectors == "sentence"
    ):
        raise UserInputError(
            f"`pairs=True` applies to classifiers of texts and rerankers. {str(folder)!r} is a "
            f"model for {artifact.task}. Leave it out.",
            argument="pairs",
        )
    name = name or folder.absolute().name
    if not _NAME.fullmatch(name):
        raise UserInputError(
            f"`name={name!r}` is not a name for a server's model. Use letters, digits, '.', '_' "
            "and '-'.",
            argument="name",
        )
    chosen = artifact.target_for(engine, target)
    return Source(
        artifact=artifact,
        engine=engine,
        target=chosen,
        outputs=_outputs(artifact, returns, default),
        head=read_sentence_head(SentenceFiles.of_folder(folder)),
        settings=ModelSettings.of_folder(folder),
        name=name,
        pairs=pairs,
    )


def _outputs(
    artifact: Artifact, wanted: ExportedOutputs | None, default: ExportedOutputs
) -> tuple[str, ...]:
    there = artifact.output_names
    if TASK_KINDS[artifact.task].vectors != "sentence":
        if wanted is not None:
            raise UserInputError(
                f"`returns={wanted!r}` applies to embedders. A model for {artifact.task} returns "
                f"{', '.join(there)}. Leave it out.",
                argument="returns",
            )
        return there
    chosen = wanted or (default if default in there else there[0])
    names = (LAST_HIDDEN_STATE, SENTENCE_EMBEDDING) if chosen == "both" else (chosen,)
    missing = [each for each in names if each not in there]
    if missing:
        raise UserInputError(
            f"`returns={chosen!r}`: the graph has no {missing[0]}, only {', '.join(there)}. For a "
            "model that says nothing about its pooling, name one when you quantize it.",
            argument="returns",
        )
    return tuple(names)


def pooling_of(source: Source, known: Mapping[str, str], runtime: str) -> tuple[str, bool]:
    """Return how a pipeline has to pool, and whether it normalizes, as the folder does.

    Args:
        source: The embedder.
        known: Names of poolings in the pipeline, by their names in sentence-transformers.
        runtime: The name of the runtime that pools, for errors.

    Raises:
        UserInputError: It has no such pooling, or the model has modules between its pooling and
            the last Normalize.
    """
    names = ", ".join(source.head.after_pooling) if source.head else ""
    if names:
        raise UserInputError(
            f"The model has {names} after its pooling, and pipelines of this format do not. With "
            "`returns='sentence_embedding'` the graph computes them.",
            argument="returns",
        )
    # `load` returns the mean of token states for an encoder without a head.
    pooling = "mean" if source.head is None else ", ".join(source.head.poolings)
    if pooling not in known:
        raise UserInputError(
            f"{runtime} no pooling {pooling!r}, only {', '.join(known)}. With "
            "`returns='sentence_embedding'` the graph pools, for programs that run it themselves.",
            argument="returns",
        )
    return known[pooling], source.head is not None and source.head.normalize


def refuse_truncate_dim(source: Source, why: str) -> None:
    """Refuse embedders that keep a part of their dimensions."""
    count = source.settings.truncate_dim
    if source.is_embedder and count is not None:
        raise UserInputError(
            f"The model keeps {count} dimensions of each embedding (`truncate_dim` of its "
            f"settings), {why}. Remove `truncate_dim` from a copy of the folder.",
            argument="to",
        )
