"""What models do with labels of a call: `zero_shot_job`, and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qdqbert.common.errors import UserInputError
from qdqbert.common.keywords import suggest_keywords
from qdqbert.encoders.task_kinds import entailment_of
from qdqbert.runtime.inputs import described, listed, listed_labels
from qdqbert.runtime.model import Model
from qdqbert.tasks.decisions import (
    Decide,
    Question,
    check_decision,
    choice_of,
    read_questions,
    texts_of,
)
from qdqbert.tasks.hypotheses import Reading, ReadsLabels, ScoreLabels, hypotheses_of


class TakesLabels(Model):
    """A model that chooses among labels of a call, or one of a kind that may do so."""

    pairs_labels = True

    @property
    def takes_labels(self) -> bool:
        """Whether it can be asked: a class is called entailment, or classes have no names."""
        named = self._loaded.artifact.task_options.entailment_label
        try:
            entailment_of(self._loaded.id2label, where=self.name, named=named)
        except UserInputError:
            return False
        return True

    def _labels_reader(self, asked: Mapping[str, Question], how: Reading) -> ReadsLabels:
        """Return what reads the labels of questions with the model. A single one may be named "".

        Raises:
            UserInputError: The model has no class of entailment, or the template no place for a
                label; or the model does not read one of the others.
        """
        how.refuse(self.name, "models of gliner2", "task_name")
        how.check()
        return hypotheses_of(self._loaded, texts_of(asked), how)

    @suggest_keywords
    def zero_shot_job(
        self,
        *,
        candidate_labels: str | Sequence[str],
        multi_label: bool = False,
        hypothesis_template: str | None = None,
        entailment_label: str | None = None,
        task_name: str | None = None,
    ) -> ScoreLabels:
        """Return the job of zero-shot classification, for `stream`; see `ZeroShotClassifier`.

        Raises:
            UserInputError: Labels are missing or no texts, or the model cannot read them.
        """
        if isinstance(candidate_labels, Mapping):
            raise UserInputError(
                "`candidate_labels` has to be a list of labels, got "
                f"{described(dict(candidate_labels))}. Pass the texts of all labels in one list.",
                argument="candidate_labels",
            )
        labels = listed_labels(candidate_labels)
        how = Reading(hypothesis_template, entailment_label, task_name)
        reader = self._labels_reader({"": choice_of(labels)}, how)
        return ScoreLabels(reader=reader, labels=labels, multi_label=multi_label)

    @suggest_keywords
    def decide(
        self,
        state: Any,
        options: Mapping[str, str | None] | Sequence[str] | None = None,
        *,
        questions: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        threshold: float | None = None,
        hypothesis_template: str | None = None,
        entailment_label: str | None = None,
        task_name: str | None = None,
    ) -> Any:
        """Choose one of several options, with a probability, or none of them.

        Answers have the form of transformers' pipeline "decision".

        Args:
            state: A text to decide about, or a list of them; or a request of transformers,
                `{"state": ..., "questions": ...}`.
            options: Names of the options, or descriptions by name: what stands in the place of `{}`
                in the template, or `None` for the name.
            questions: Questions by name instead of options, as in transformers: `{"type": "choice",
                "criteria": options}`, `{"type": "score", "criteria": levels}`, or `{"type": "noul",
                "criteria": {"true": description}}`, which is whether something is so.
                `instructions` are not read.
            temperature: Divides logits of options. By default the one that `quantize` fitted and
                stored, or 1.
            threshold: Least probability of an option that is chosen. Below it, `choice` is `None`.
            hypothesis_template: See `__call__`.
            entailment_label: See `__call__`.
            task_name: What the options are about, for models of gliner2; see `__call__`. There,
                each of `questions` is about its name.

        Returns:
            For options `{"type": "choice", "choice": ..., "confidence": ..., "probabilities":
            {...}}` for each text. `confidence` is 0 if all options are equally probable, and 1 if
            one is certain. For questions, such answers by name.

        Raises:
            UserInputError: A text, an option or a question is not as described.

        Example:
            >>> model.decide("Please give me my money back.", {"refund": "a refund", "other": None})
            {'type': 'choice', 'choice': 'refund', 'confidence': 0.91, 'probabilities': ...}
        """
        if isinstance(state, Mapping):
            if options is not None or questions is not None or {*state} != {"state", "questions"}:
                raise UserInputError(
                    "`state` is a mapping: expected `state` and `questions` in it, as in "
                    f"transformers, and no other argument; got {described(dict(state))}.",
                    argument="state",
                )
            state, questions = state["state"], state["questions"]
        is_one = isinstance(state, str)
        texts = [state] if is_one else listed(state, "state", "a text or a list of texts")
        job = self.deciding_job(
            options=options,
            questions=questions,
            temperature=temperature,
            threshold=threshold,
            hypothesis_template=hypothesis_template,
            entailment_label=entailment_label,
            task_name=task_name,
        )
        answers = self._all(job, texts)
        return answers[0] if is_one else answers

    @suggest_keywords
    def deciding_job(
        self,
        *,
        options: Mapping[str, str | None] | Sequence[str] | None = None,
        questions: Mapping[str, Any] | None = None,
        temperature: float | None = None,
        threshold: float | None = None,
        hypothesis_template: str | None = None,
        entailment_label: str | None = None,
        task_name: str | None = None,
    ) -> Decide:
        """Return the job of `decide` with these options, for `stream`."""
        check_decision(temperature, threshold)
        if (options is None) == (questions is None):
            raise UserInputError(
                "A decision needs either `options` or `questions`. Pass one of them.",
                argument="options",
            )
        asked: Mapping[str, Question]
        asked = {"": choice_of(options)} if questions is None else read_questions(questions)
        settings = self._loaded.artifact.task_options
        if questions is not None and task_name is not None:
            raise UserInputError(
                f"`task_name={task_name!r}` is for `options`, and each of `questions` has a name. "
                "Leave it out.",
                argument="task_name",
            )
        how = Reading(hypothesis_template, entailment_label, task_name)
        return Decide(
            reader=self._labels_reader(asked, how),
            questions=asked,
            temperature=temperature or settings.decision_temperature,
            threshold=threshold,
        )


class TakesLabelsTogether(TakesLabels):
    """A model that reads all labels of a call at once with a text, as they are."""

    pairs_labels = False

    @property
    def takes_labels(self) -> bool:
        """Whether the model can be asked, which it always can."""
        return True

    def _labels_reader(self, asked: Mapping[str, Question], how: Reading) -> ReadsLabels:
        names = ("hypothesis_template", "entailment_label")
        how.refuse(self.name, "classifiers of entailment", *names)
        how.check()
        return self._joint_reader(asked, how)

    def _joint_reader(self, asked: Mapping[str, Question], how: Reading) -> ReadsLabels:
        """Return what reads the labels of questions; see `_labels_reader`."""
        raise NotImplementedError
