"""Labels of a call for checkpoints of gliclass, which read a text with all labels at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.gliclass import LABEL_TOKEN, SEP_TOKEN, LabelHead
from qdqbert.encoders.checkpoint.text_heads import stored_head
from qdqbert.encoders.model import Floats
from qdqbert.runtime.inputs import check_text
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.decisions import Question, texts_of
from qdqbert.tasks.hypotheses import Reading, ReadsLabels, ReadsTogether
from qdqbert.tasks.label_scores import LabelScorer
from qdqbert.tasks.span_layers import Tensors
from qdqbert.tasks.takes_labels import TakesLabelsTogether
from qdqbert.tasks.task import Task, Tokenization, tokenization_of
from qdqbert.tasks.zero_shot_classification import (
    ZeroShotClassifier,
    joint_label_task,
    of_reader,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarkedLabels(ReadsTogether):
    """Reads a text with all labels at once.

    Attributes:
        tokenizer: The tokenizer.
        input_names: Inputs of the graph.
        scorer: Scores the labels.
        count: Number of labels.
        lead: What a text is read behind, in one piece with it.
        before: Ids of the tokens before that.
        after: Ids of the tokens after the text.
    """

    tokenizer: Tokenizer
    input_names: Sequence[str]
    scorer: LabelScorer
    count: int
    lead: str
    before: Sequence[int]
    after: Sequence[int]

    @classmethod
    def of(cls, labels: Sequence[str], scorer: LabelScorer, how: Tokenization) -> MarkedLabels:
        """Tokenize labels.

        Raises:
            UserInputError: A label has a token that stands between labels.
        """
        for label in labels:
            if LABEL_TOKEN in label or SEP_TOKEN in label:
                raise UserInputError(
                    f"The label {label!r:.80} has {LABEL_TOKEN} or {SEP_TOKEN}, which stand "
                    "between labels. Leave them out.",
                    argument="candidate_labels",
                )
        marked = "".join(f"{LABEL_TOKEN}{label}" for label in labels)
        first = scorer.head.labels_first
        text = marked if first else f"{marked}{SEP_TOKEN}"
        (found,) = how.tokenizer.cutting(None).encode_batch([text], special=False)
        return cls(
            tokenizer=how.tokenizer.cutting(how.max_length),
            input_names=how.input_names,
            scorer=scorer,
            count=len(labels),
            lead=SEP_TOKEN if first else "",
            before=found.ids if first else (),
            after=() if first else found.ids,
        )

    def encode(self, items: Sequence[Any]) -> list[EncodedItem]:
        """Return the model input of each text with the labels."""
        texts = [f"{self.lead}{check_text(item)}" for item in items]
        return [
            EncodedItem(features=(feature_of(each, self.input_names),), truncated=each.truncated)
            for each in self.tokenizer.encode_around(texts, self.before, self.after)
        ]

    def score(self, states: Floats, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the logits of the labels of a text, `(labels,)`."""
        return self.scorer.logits(states, ids, self.count)


class JointClassifier(TakesLabelsTogether, ZeroShotClassifier):
    """Chooses among labels that a call names, of which all are read at once with a text."""

    def __init__(self, loaded: Loaded) -> None:
        """Read the layers after the encoder.

        Raises:
            CheckpointError: Their file is missing or damaged.
        """
        super().__init__(loaded)
        folder = loaded.artifact.directory
        head = stored_head(folder, LabelHead)
        self._scorer = LabelScorer.of(head, Tensors.of_folder(folder, head))

    @property
    def facts(self) -> dict[str, Any]:
        """How a text becomes a vector, and how it scores labels; see `Model.facts`."""
        return {
            "pooling": self._scorer.head.text_pooling,
            "scorer": self._scorer.head.scorer,
            "decision_temperature": self._loaded.artifact.task_options.decision_temperature,
        }

    def _joint_reader(self, asked: Mapping[str, Question], how: Reading) -> ReadsLabels:
        how.refuse(self.name, "models of gliner2", "task_name")
        return MarkedLabels.of(texts_of(asked), self._scorer, tokenization_of(self._loaded))


def joint_task(scorer: LabelScorer) -> Task:
    """Return the task of a checkpoint whose layers after the encoder are known."""
    return of_reader(GLICLASS, lambda labels, how: MarkedLabels.of(labels, scorer, how))


GLICLASS = joint_label_task("gliclass", JointClassifier)
"""Zero-shot classification by checkpoints of gliclass."""
