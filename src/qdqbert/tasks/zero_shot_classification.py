"""Choosing among labels that a call names, by a classifier of entailment.

The model has the interface of transformers' pipeline "zero-shot-classification". An example is a
text with its label, and the labels of a data set are what the model chooses among.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError, DataFileError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.common.objects import Rows as GivenRows
from qdqbert.data.rows.columns import is_number
from qdqbert.data.rows.data import Columns, Dataset, Example, read_dataset
from qdqbert.data.tokenizing.encoding import feature_of
from qdqbert.encoders.task_kinds import Entailment, TaskSettings, entailment_of
from qdqbert.runtime.batches import Results
from qdqbert.runtime.inputs import check_whole, listed
from qdqbert.runtime.model import Loaded, Model
from qdqbert.runtime.routes import TaskRoute
from qdqbert.tasks.class_names import sorted_names
from qdqbert.tasks.decisions import calibration_error, fitted_temperature, rows_of_decisions
from qdqbert.tasks.hypotheses import (
    LABELED_ROWS,
    LabelLogits,
    LabelScores,
    ReadsTogether,
    found_entailment,
    hypotheses,
    joint_logits,
    label_logits,
    states_of,
)
from qdqbert.tasks.logits import extreme_classes, logit_predictions, score_of_pairs
from qdqbert.tasks.metrics import accuracy, f1_macro
from qdqbert.tasks.takes_labels import TakesLabels
from qdqbert.tasks.task import (
    Answer,
    Decisions,
    Features,
    Outcome,
    Prediction,
    Rows,
    Score,
    Task,
    Tokenization,
)
from qdqbert.tasks.texts import checking, label_of

_NAME = "zero-shot-classification"
SAMPLE_LABELS = ("politics", "sports", "business", "science")
"""Labels of texts that have none, such as the built-in ones: a pair is a text with one of them."""

JointReader = Callable[[Sequence[str], Tokenization], ReadsTogether]
"""Returns what reads labels with a text."""

ReadLogits = Callable[[Outcome], list[LabelLogits]]
"""Returns what a model says about the labels of each example."""

# With fewer labeled examples, a temperature is a matter of chance.
_FEWEST_FITTED = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabeledExample(Example):
    """A text with its label, and the labels that it is one of.

    Attributes:
        candidates: The labels of the data set, in order.
    """

    candidates: tuple[str, ...]


def read_labeled(data: str | GivenRows, *, columns: Columns, max_examples: int | None) -> Dataset:
    """Read texts with their labels; see `read_dataset`. Without labels, texts have no candidates.

    Raises:
        DataFileError: Rows have two texts, or labels are numbers.
    """
    dataset = read_dataset(data, columns=columns, max_examples=max_examples)
    if dataset.columns.text_pair is not None:
        raise DataFileError(
            f"The data `{dataset.path}` have two texts per row, and {_NAME} reads one, with a "
            "label in words. For pairs with the model's own classes, pass "
            "`task='text-classification'`.",
            argument="text_pair_column",
        )
    labels = {each for example in dataset.examples for each in example.labels or ()}
    if labels and all(map(is_number, labels)):
        raise DataFileError(
            f"The labels of the data `{dataset.path}` are numbers, of which a sentence says "
            "nothing. Write words in their place, or name another column with `label_column`.",
            argument="label_column",
        )
    candidates = tuple(sorted_names(labels)) if labels else ()
    examples = tuple(
        LabeledExample(text=each.text, label=each.label, row=each.row, candidates=candidates)
        for each in dataset.examples
    )
    return dataclasses.replace(dataset, examples=examples)


def _encode(examples: Sequence[Any], how: Tokenization) -> Features:
    """Make a feature of each text with each of its labels."""
    template = how.settings.hypothesis_template
    tokenizer = how.tokenizer.cutting(how.max_length)
    owners: list[int] = []
    features = []
    cut = 0
    for number, example in enumerate(examples):
        # Texts without labels, such as the built-in ones, are pairs of the same kind.
        labels = getattr(example, "candidates", ()) or (SAMPLE_LABELS[number % len(SAMPLE_LABELS)],)
        (pairs,) = tokenizer.encode_each([example.text], hypotheses(labels, template))
        features += [feature_of(each, how.input_names) for each in pairs]
        owners += [number] * len(pairs)
        cut += any(each.truncated for each in pairs)
    made = how.features(examples, how.encoded(features, cut), len(examples))
    return dataclasses.replace(made, owners=tuple(owners))


def _entailment(outcome: Outcome) -> Entailment:
    named = outcome.settings.entailment_label
    return found_entailment(outcome.id2label, where="the model", named=named)


def _logits(outcome: Outcome) -> list[LabelLogits]:
    """Return what the model says about the labels of each example."""
    entailment = _entailment(outcome)
    return [
        label_logits(np.stack([outcome.predictions[index] for index in own]), entailment)
        for own in outcome.features.by_example()
    ]


def _scored(read: ReadLogits, outcome: Outcome) -> list[NDArray[np.float32]]:
    """Return the score of each label of each example."""
    return [each.scores(multi_label=False) for each in read(outcome)]


def _scores(read: ReadLogits, outcome: Outcome) -> list[Score]:
    candidates = outcome.examples[0].candidates
    found = [int(each.argmax()) for each in _scored(read, outcome)]
    right = [candidates.index(label_of(each)) for each in outcome.examples]
    extremes = extreme_classes(max(len(candidates), 2))
    scores = [
        score_of_pairs("accuracy", found, right, accuracy, extremes),
        score_of_pairs("f1_macro", found, right, f1_macro, extremes),
    ]
    if len(candidates) > 1:
        logits = [each.own for each in read(outcome)]
        # The first one is the error without a temperature.
        temperature = outcome.settings.decision_temperature
        named = {"ece": 1.0, **({} if temperature == 1 else {"ece_at_temperature": temperature})}
        scores += [_error(name, rows_of_decisions(logits, right, t)) for name, t in named.items()]
    return scores


def _error(name: str, rows: Rows) -> Score:
    """Return the expected calibration error of decisions. The worst ones are sure and wrong."""
    return Score(
        name=name,
        rows=rows,
        compute=calibration_error,
        extremes=lambda _: (np.array([[[1.0, 1.0]]]), np.array([[[1.0, 0.0]]])),
        is_error=True,
    )


def _fit(read: ReadLogits, outcome: Outcome) -> tuple[TaskSettings, str] | None:
    """Return the settings with the temperature that makes the probabilities of labels true."""
    logits, right = [], []
    for example, found in zip(outcome.examples, read(outcome), strict=True):
        label = (example.label or "").strip()
        candidates = getattr(example, "candidates", ())
        if len(candidates) > 1 and label in candidates:
            logits.append(found.own)
            right.append(candidates.index(label))
    if len(right) < _FEWEST_FITTED:
        return None
    temperature = round(fitted_temperature(logits, right), 4)
    return dataclasses.replace(outcome.settings, decision_temperature=temperature), (
        f"The temperature of decisions is {temperature:g}, fitted on {len(right)} labeled examples "
        "of the calibration data. With labels, `ece` and `ece_at_temperature` are the expected "
        "calibration errors on the held-out examples before and after it, in percent."
    )


def _decisions(read: ReadLogits, outcome: Outcome) -> Decisions:
    """Return the best label of each text, or whether its only one fits."""
    return [
        (bool(each[0] > 0.5) if len(each) == 1 else int(each.argmax()),)
        for each in _scored(read, outcome)
    ]


def _answers(read: ReadLogits, outcome: Outcome) -> list[Answer]:
    answers = []
    for example, scores in zip(outcome.examples, _scored(read, outcome), strict=True):
        candidates = getattr(example, "candidates", ())
        best = int(scores.argmax())
        named = {"prediction": candidates[best]} if candidates else {}
        answers.append(
            Answer(
                given=example.given,
                found={**named, "score": float(scores[best])},
                numbers=scores.astype(np.float64),
            )
        )
    return answers


class LabelOptions(TypedDict, total=False):
    """Options of a call."""

    multi_label: bool
    hypothesis_template: str | None
    entailment_label: str | None
    task_name: str | None
    batch_size: int | None


class ZeroShotClassifier(TakesLabels, Model):
    """Chooses among labels that a call names."""

    rows = LABELED_ROWS

    def __init__(self, loaded: Loaded) -> None:
        """Find the class of entailment.

        Raises:
            UserInputError: The model has none.
        """
        super().__init__(loaded)
        named = loaded.artifact.task_options.entailment_label
        # Other models read no classes; a call may have to name one.
        self._entailment = (
            entailment_of(loaded.id2label, where=loaded.name, named=named)
            if self.pairs_labels
            else None
        )

    @property
    def task(self) -> str:
        """Name of the task in transformers."""
        return _NAME

    @property
    def facts(self) -> dict[str, Any]:
        """How a label becomes a sentence, and the class that scores it; see `Model.facts`."""
        template = self._loaded.artifact.task_options.hypothesis_template
        labels, found = self._loaded.labels, self._entailment
        named = None if found is None else labels[found.own]
        temperature = self._loaded.artifact.task_options.decision_temperature
        return {
            "hypothesis_template": template,
            "entailment_label": named,
            "decision_temperature": temperature,
        }

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a text is a sequence of texts
        self, sequences: str, candidate_labels: str | Sequence[str], **options: Unpack[LabelOptions]
    ) -> LabelScores: ...

    @overload
    def __call__(
        self,
        sequences: Sequence[str],
        candidate_labels: str | Sequence[str],
        **options: Unpack[LabelOptions],
    ) -> list[LabelScores]: ...

    @suggest_keywords
    def __call__(
        self,
        sequences: Any,
        candidate_labels: str | Sequence[str],
        *,
        multi_label: bool = False,
        hypothesis_template: str | None = None,
        entailment_label: str | None = None,
        task_name: str | None = None,
        batch_size: int | None = None,
    ) -> Any:
        """Sort labels by how well they fit texts, as transformers' pipeline does.

        Args:
            sequences: A text, or a list of them. Longer ones than the model reads are cut, and
                labels never are.
            candidate_labels: Labels to choose among: a list, or one text with commas between them.
            multi_label: Whether each label is scored alone, by entailment rather than
                contradiction, so that any number of them can fit. Otherwise the scores of all
                labels add up to 1.
            hypothesis_template: Sentence about a label, whose place is `{}`. By default the one
                that the folder stores, or "This example is {}."
            entailment_label: Name of the class of entailment. By default the one whose name begins
                so.
            task_name: What the labels are about, as "mood", for models of gliner2, which read it
                before the labels: the name of the task in `GLiNER2.classify_text`. "category" by
                default.
            batch_size: Has no effect. It is there for code that passes it to transformers.

        Returns:
            `{"sequence": ..., "labels": [...], "scores": [...]}` for each text, the best label
            first.

        Raises:
            UserInputError: An input is not a text, a label is missing or twice there, or the model
                has no class of entailment.

        Example:
            >>> model("The team won the final.", candidate_labels=["sports", "politics"])
            {'sequence': 'The team won the final.', 'labels': ['sports', 'politics'], ...}
        """
        check_whole("batch_size", batch_size, at_least=1)
        is_one = isinstance(sequences, str)
        wanted = "a text or a list of texts"
        texts = [sequences] if is_one else listed(sequences, "sequences", wanted)
        job = self.job(
            candidate_labels=candidate_labels,
            multi_label=multi_label,
            hypothesis_template=hypothesis_template,
            entailment_label=entailment_label,
            task_name=task_name,
        )
        answers = self._all(job, texts)
        return answers[0] if is_one else answers

    job = TakesLabels.zero_shot_job


def _label_scores(answer: LabelScores, _: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an answer in the form of Hugging Face's API."""
    pairs = zip(answer["labels"], answer["scores"], strict=True)
    return [{"label": label, "score": score} for label, score in pairs]


def label_task(read: ReadLogits) -> Task:
    """Return the task of models of a kind; `read` returns what they say about labels."""
    return Task(
        name=_NAME,
        read=read_labeled,
        encode=_encode,
        check_labels=checking(lambda each, _: label_of(each)),
        predictions=logit_predictions,
        scores=functools.partial(_scores, read),
        decisions=functools.partial(_decisions, read),
        labels=None,
        answers=functools.partial(_answers, read),
        model=ZeroShotClassifier,
        route=TaskRoute(
            inputs=(str,),
            parameters={
                "candidate_labels": ...,
                "multi_label": False,
                "hypothesis_template": None,
                "entailment_label": None,
                "task_name": None,
            },
            answer=_label_scores,
            method="zero_shot_job",
            also=(TakesLabels,),
            fits=lambda model: model.takes_labels,
            example_parameters={"candidate_labels": ["praise", "complaint"]},
        ),
        settings=("hypothesis_template", "entailment_label", "decision_temperature"),
        fit=functools.partial(_fit, read),
    )


def joint_label_task(package: str, model: type[ZeroShotClassifier]) -> Task:
    """Return the task of models that read all labels of a text together.

    It refuses examples: see `of_reader`.

    Args:
        package: The package whose layers they have.
        model: The class that `load` returns.
    """
    return dataclasses.replace(
        label_task(_joint_logits),
        encode=functools.partial(_without_layers, package),
        predictions=_joint_predictions,
        model=model,
        settings=("decision_temperature",),
    )


def _without_layers(package: str, examples: Sequence[Any], how: Tokenization) -> Features:
    """Refuse examples for a model without the layers after the encoder."""
    del examples, how
    raise CheckpointError(
        f"The model has no layers of {package}. Pass the folder of the checkpoint, or one that "
        "`quantize` made of it."
    )


def of_reader(task: Task, reader: JointReader) -> Task:
    """Return such a task of a model whose layers after the encoder are known."""
    return dataclasses.replace(task, encode=functools.partial(_encode_joint, reader))


def _encode_joint(reader: JointReader, examples: Sequence[Any], how: Tokenization) -> Features:
    """Make a feature of each text with all of its labels."""
    readers: dict[tuple[str, ...], ReadsTogether] = {}
    features: list[Any] = []
    places: list[ReadsTogether] = []
    cut = 0
    for example in examples:
        labels = tuple(getattr(example, "candidates", ()) or SAMPLE_LABELS)
        if labels not in readers:
            readers[labels] = reader(labels, how)
        (made,) = readers[labels].encode([example.text])
        features += made.features
        places.append(readers[labels])
        cut += made.truncated
    found = how.features(examples, how.encoded(features, cut), len(examples))
    return dataclasses.replace(found, places=tuple(places))


def _joint_predictions(results: Results) -> list[Prediction]:
    """Return the logits of the labels of each text, `(labels,)`."""
    pairs = zip(states_of(results), results.places, strict=True)
    return [reader.score(*each) for each, reader in pairs]


def _joint_logits(outcome: Outcome) -> list[LabelLogits]:
    return [joint_logits(each) for each in outcome.predictions]


ZERO_SHOT_CLASSIFICATION = label_task(_logits)
