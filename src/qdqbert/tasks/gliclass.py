"""Labels of a call for checkpoints of gliclass, which read a text with all labels at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import UserInputError
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.data.tokenizing.tokenizer import Tokenizer
from qdqbert.encoders.checkpoint.gliclass import (
    GLICLASS as FIELD,
)
from qdqbert.encoders.checkpoint.gliclass import (
    LABEL_TOKEN,
    SEP_TOKEN,
    label_head,
)
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_text
from qdqbert.runtime.model import Loaded
from qdqbert.runtime.scheduler import EncodedItem
from qdqbert.tasks.decisions import Question, texts_of
from qdqbert.tasks.hypotheses import LabelLogits, ReadsLabels, joint_logits
from qdqbert.tasks.label_scores import LabelScorer
from qdqbert.tasks.takes_labels import refuse
from qdqbert.tasks.task import Features, Prediction, Task, Tokenization
from qdqbert.tasks.zero_shot_classification import (
    SAMPLE_LABELS,
    ZeroShotClassifier,
    joint_label_task,
)

_STATES = "last_hidden_state"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadTogether:
    """Reads a text with all labels at once; see `ReadsLabels`.

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
    def of(
        cls,
        labels: Sequence[str],
        scorer: LabelScorer,
        tokenizer: Tokenizer,
        input_names: Sequence[str],
    ) -> ReadTogether:
        """Tokenize labels. The tokenizer cuts texts.

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
        whole = tokenizer.cutting(None)
        text = marked if first else f"{marked}{SEP_TOKEN}"
        (found,) = whole.encode_batch([text], special=False)
        return cls(
            tokenizer=tokenizer,
            input_names=input_names,
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

    def split(self, results: Results) -> Sequence[NDArray[np.float32]]:
        """Return the logits of the labels of each text, `(labels,)`."""
        found = []
        for states, feature in zip(results.outputs[_STATES], results.features, strict=True):
            ids = feature["input_ids"]
            found.append(self.scorer.logits(states[: len(ids)], ids, self.count))
        return found

    def logits(self, _: EncodedItem, values: Sequence[NDArray[np.float32]], /) -> LabelLogits:
        """Return the logits, which are those of each label alone, too."""
        return joint_logits(values[0])


class JointClassifier(ZeroShotClassifier):
    """Chooses among labels that a call names, of which all are read at once with a text."""

    pairs_labels = False

    def __init__(self, loaded: Loaded) -> None:
        """Read the layers after the encoder.

        Raises:
            CheckpointError: Their file is missing or damaged.
        """
        super().__init__(loaded)
        head = label_head(loaded.config[FIELD])
        self._scorer = LabelScorer.of_folder(head, loaded.artifact.directory)

    @property
    def takes_labels(self) -> bool:
        """Whether the model can be asked, which it always can."""
        return True

    def _find_entailment(self) -> None:
        """Find no class of entailment, as labels are read as they are."""

    @property
    def facts(self) -> dict[str, Any]:
        """How a text becomes a vector, and how it scores labels; see `Model.facts`."""
        return {
            "pooling": self._scorer.head.text_pooling,
            "scorer": self._scorer.head.scorer,
            "decision_temperature": self._loaded.artifact.task_options.decision_temperature,
        }

    def _labels_reader(
        self,
        asked: Mapping[str, Question],
        *,
        hypothesis_template: str | None,
        entailment_label: str | None,
        task_name: str | None,
    ) -> ReadsLabels:
        refuse(
            "is for classifiers of entailment",
            self.name,
            hypothesis_template=hypothesis_template,
            entailment_label=entailment_label,
        )
        refuse("is for models of gliner2", self.name, task_name=task_name)
        loaded = self._loaded
        names = loaded.artifact.input_names
        return ReadTogether.of(texts_of(asked), self._scorer, loaded.tokenizer, names)


def joint_task(scorer: LabelScorer) -> Task:
    """Return the task of a checkpoint whose layers after the encoder are known."""
    return dataclasses.replace(GLICLASS, encode=functools.partial(_encode, scorer))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """What the logits of a feature are made of: the layers, and the number of labels."""

    scorer: LabelScorer
    count: int


def _encode(scorer: LabelScorer, examples: Sequence[Any], how: Tokenization) -> Features:
    """Make a feature of each text with all of its labels."""
    tokenizer = how.tokenizer.cutting(how.max_length)
    readers: dict[tuple[str, ...], ReadTogether] = {}
    features: list[Any] = []
    places: list[_Place] = []
    cut = 0
    for example in examples:
        labels = getattr(example, "candidates", ()) or SAMPLE_LABELS
        if labels not in readers:
            readers[labels] = ReadTogether.of(labels, scorer, tokenizer, how.input_names)
        (made,) = readers[labels].encode([example.text])
        features += made.features
        places.append(_Place(scorer=scorer, count=len(labels)))
        cut += made.truncated
    found = how.features(examples, how.encoded(features, cut), len(examples))
    return dataclasses.replace(found, places=tuple(places))


def _predictions(results: Results) -> list[Prediction]:
    """Return the logits of the labels of each text, `(labels,)`."""
    rows = zip(results.outputs[_STATES], results.features, results.places, strict=True)
    return [
        place.scorer.logits(states[: len(feature["input_ids"])], feature["input_ids"], place.count)
        for states, feature, place in rows
    ]


GLICLASS = joint_label_task("gliclass", JointClassifier, _predictions)
"""Zero-shot classification by checkpoints of gliclass."""
