"""Layers after an encoder that are not part of the graph: a call decides which tokens they read.

Packages save them in one file with the encoder.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from qdqbert.common.errors import CheckpointError
from qdqbert.common.file_names import CONFIG
from qdqbert.common.json_files import parse_object
from qdqbert.encoders.checkpoint.layout import Layout
from qdqbert.encoders.checkpoint.sentence_files import FindFile
from qdqbert.encoders.model import Floats, Pooling, Step
from qdqbert.encoders.relative_limit import reading
from qdqbert.encoders.task_kinds import ENCODER, LABELS, TaskName
from qdqbert.encoders.tensor_files import SAFETENSORS, TORCH, write_tensors
from qdqbert.encoders.weights import Weights

GLICLASS, GLINER2 = "GLiClass", "extractor"
"""The `model_type` of checkpoints of gliclass and gliner2, and the field of a folder's config.json
that says so."""

_PACKAGES = {GLICLASS: "gliclass", GLINER2: "gliner2"}

SubtokenPooling = Literal["first", "last", "mean", "max"]

# Distances of an encoder with relative positions only, so that texts are cut at no number of
# tokens by the packages.
_LONGEST = 1024


def package_of(config: Mapping[str, Any]) -> str | None:
    """Return the package whose models read all labels together, by the config.json of a folder."""
    return next((package for field, package in _PACKAGES.items() if field in config), None)


def task_of_config(task: str, config: Mapping[str, Any]) -> str:
    """Return the task of a folder: an encoder with such layers chooses among labels."""
    return LABELS if task == ENCODER and package_of(config) is not None else task


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLayers(Layout):
    """The settings of an encoder with such layers, whose graph has the states alone.

    Attributes:
        max_length: `None`: the tokenizer's limit counts.
    """

    row_poolings: ClassVar[tuple[Pooling, ...]] = ()
    weight_folders: ClassVar[tuple[str, ...]] = ()
    body: ClassVar[str]
    """Prefix of the tensors of the encoder."""
    layers: ClassVar[Mapping[str, str]]
    """Starts of the names of the tensors after it, with the settings that ask for them."""
    file: ClassVar[str] = CONFIG
    """The file of their settings, in a folder with graphs, too."""
    weights_file: ClassVar[str]
    """The file of these tensors in a folder with graphs, in float32."""
    max_length: int | None = None

    def steps(self, find: FindFile) -> tuple[Step, ...]:
        """Return the steps in the graph: none."""
        del find
        return ()

    def of_encoder(self, weights: Weights) -> Weights:
        """Return the tensors of the encoder under the names of transformers."""
        return tensors_below(weights, self.body)

    def tensors(self, find: FindFile) -> dict[str, Floats]:
        """Return the weights after the encoder by name, of the files of a checkpoint.

        Raises:
            CheckpointError: There is no such file, or it is damaged.
        """
        weights = found_weights(find)
        return {name: weights.read(name) for name in weights if name.startswith(tuple(self.layers))}

    def write_settings(self, folder: Path, find: FindFile) -> None:
        """Write the weights after the encoder to a folder."""
        write_tensors(folder / self.weights_file, self.tensors(find))


LARGEST_ID = 2**31 - 1
"""No id of a token is larger."""


def whole_numbers(value: Any) -> Any:
    """Return settings of a package with 24 for 24.0, which the packages take, too."""
    if isinstance(value, Mapping):
        return {name: whole_numbers(each) for name, each in value.items()}
    return int(value) if type(value) is float and value.is_integer() else value


def count_or_none(value: object) -> int | None:
    """Return a number of tokens or an id; `None` for -1 and others, which stand for none."""
    found = whole_numbers(value)
    return found if type(found) is int and found >= 0 else None


def tensors_below(weights: Weights, prefix: str) -> Weights:
    """Return the tensors whose names begin with a prefix, without it."""
    names = (name for name in weights if name.startswith(prefix))
    return weights.renamed({name.removeprefix(prefix): name for name in names})


class PromptWords(NamedTuple):
    """The words that are read with a text, of which most are labels.

    Attributes:
        words: The words, each of which is tokenized by itself.
        marks: Indices of those that are marks, of which each is one token.
        labels: Number of labels.
        has_ends: Whether the tokens around a text, such as [CLS], stand around both.
        reads_marks: Whether the states of marks are read, and not those of the tokens after them.
        after: Number of the last words that are scored as those of a text are.
    """

    words: list[str]
    marks: list[int]
    labels: int
    has_ends: bool
    reads_marks: bool = True
    after: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpanHead(OwnLayers):
    """How spans of words are scored by labels that are read with a text.

    Attributes:
        max_width: Most words of an entity.
        max_words: Most words of a text that are read together; `None` for any number.
        subtoken_pooling: Which token of a word has its state.
    """

    task: ClassVar[TaskName] = "entity-extraction"
    package: ClassVar[str]
    """The package that saves such checkpoints."""
    weights_file: ClassVar[str] = "span_head.safetensors"
    word: ClassVar[re.Pattern[str]]
    """Words of a text."""
    lower_words: ClassVar[bool] = False
    """Whether words are read in lower case."""
    ends: ClassVar[tuple[str, ...]] = ()
    """Ends of texts; the first one is read after a text that has none of them. None for any."""
    describes: ClassVar[bool] = False
    """Whether descriptions of labels are read next to their names, and not in their place."""
    separates_labels: ClassVar[bool] = False
    """Whether labels do not exclude each other, unless a call says so."""
    keeps_empty_words: ClassVar[bool] = False
    """Whether a word without tokens has the state of the token after it, and not zeros."""
    extra_scores: ClassVar[int] = 0
    """Scores of each span before those of the labels."""
    max_width: int
    max_words: int | None
    subtoken_pooling: SubtokenPooling = "first"

    @property
    def values(self) -> dict[str, Any]:
        """The settings as they are stored."""
        return parse_object(self.files[self.file], self.file)

    @property
    def is_of_words(self) -> bool:
        """Whether words are scored as parts of entities, and not spans."""
        return False

    @property
    def tasks(self) -> tuple[TaskName, ...]:
        """Tasks of the layers, the usual one first."""
        return (self.task,)

    @property
    def finds_spans(self) -> bool:
        """Whether the layers that find spans of words are computed."""
        return True

    @property
    def shown(self) -> dict[str, Any]:
        """Settings that are shown with a model."""
        words = {} if self.max_words is None else {"max_words": self.max_words}
        return {"max_width": self.max_width, **words}

    def prompt(self, labels: Mapping[str, str | None]) -> PromptWords:
        """Return what is read with a text, of labels with their descriptions, `None` for none."""
        raise NotImplementedError

    def encoder_values(
        self, base: Mapping[str, Any] | None = None, *, vocab_size: int | None = None
    ) -> dict[str, Any]:
        """Return the config of the encoder, as transformers writes it.

        Args:
            base: The config of the model that the settings name, if they have none.
            vocab_size: Number of tokens with those that a package adds, if the settings do not say
                it.
        """
        given = self.values.get("encoder_config")
        own = given if isinstance(given, Mapping) else base or {}
        found = {"model_type": "deberta-v2", **own}
        # gliner adds tokens to the table, and says so here.
        if size := count_or_none(self.values.get("vocab_size")):
            found["vocab_size"] = size
        elif vocab_size is not None:
            found["vocab_size"] = vocab_size
        return reading(found, _LONGEST)

    def config_place(self, name: str) -> str:
        """Return the file with the config of the encoder, of a checkpoint, for messages."""
        return f"{name}/{self.file}"

    @classmethod
    def save_again(cls) -> str:
        """Return a sentence on how the package saves a checkpoint that has all files."""
        raise NotImplementedError


def found_weights(find: FindFile) -> Weights:
    """Return all tensors of a checkpoint.

    Raises:
        CheckpointError: There is no file of them, or it is damaged.
    """
    path = find(SAFETENSORS) or find(TORCH)
    if path is None:
        raise CheckpointError(f"The checkpoint has neither {SAFETENSORS} nor {TORCH}.")
    return Weights(path.parent)
