"""The names of the tasks, their settings and the models of each: architectures, outputs and heads.

Imports no library.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from qdqbert.common.errors import CheckpointError, UserInputError

TaskName = Literal[
    "entity-extraction",
    "feature-extraction",
    "fill-mask",
    "multi-vector-embedding",
    "multiple-choice",
    "next-sentence-prediction",
    "question-answering",
    "reranking",
    "sparse-embedding",
    "text-classification",
    "text-generation",
    "token-classification",
    "zero-shot-classification",
]
Vectors = Literal["sentence", "sparse", "spans", "tokens"]

TASK_NAMES: tuple[TaskName, ...] = get_args(TaskName)

ENCODER: TaskName = "feature-extraction"
"""The task of models that are an encoder alone, whatever is computed of its states."""

LABELS: TaskName = "zero-shot-classification"
"""The task of models that choose among labels of a call, whatever scores them."""

CHOICES = 4
"""Choices of an example input of a multiple-choice model, which takes any number."""

HYPOTHESIS = "This example is {}."
"""Sentence about a label, as transformers writes it."""


# Numbers of classes that an error lists.
_MOST_SHOWN = 20
# Start of the name of a class, in any case.
_ENTAILMENT = "entail"

NO_NAME = re.compile("label_([0-9]+)", re.IGNORECASE)
"""transformers' name of a class without a name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskKind:
    """The models of a task.

    Attributes:
        architectures: Ends of the names of transformers' classes. The longest match counts.
        head: The task whose head they have, if it is not their own.
        reader: Field of a family's `Heads` that reads the head.
        outputs: Names of the model outputs that the task uses.
        of_tokens: Whether outputs have a value or a row for each token.
        rank: Number of dimensions of an output: 3 for `(batch, seq, n)`, 2 for `(batch, n)` and
            `(batch, seq)`.
        has_classes: Whether the values of an output are classes, or one score.
        outputs_of_head: Number of outputs of the head, if all models have as many.
        counts_classes: Whether the head has an output for each class that the config counts.
        takes_pairs: Whether an input is always a pair of texts.
        names_labels: Whether a call names the labels that the model chooses among.
        has_choices: Whether a feature is several texts, of which one is chosen.
        vectors: What the models embed texts as. "sentence": there is no head, and the outputs are
            states and embeddings. "sparse": a weight for each word of the vocabulary, which the
            head of a masked language model makes of the tokens. "tokens": a vector for each token,
            which layers on the states of an encoder make. "spans": there is no head, and layers
            outside of the graph make scores of spans and labels of the states.
        is_causal: Whether a token sees the tokens before it only.
        predicts_words: Whether the values of an output are the vocabulary.
        hub_tag: The hub's name of the task, if it is not transformers'.
        call: An example of a call of the loaded model, if it does not depend on the model.
    """

    auto_class: str
    architectures: tuple[str, ...] = ()
    head: TaskName | None = None
    reader: str | None = None
    outputs: tuple[str, ...] = ("logits",)
    of_tokens: bool = False
    rank: int = 2
    has_classes: bool = False
    outputs_of_head: int | None = None
    counts_classes: bool = False
    takes_pairs: bool = False
    names_labels: bool = False
    has_choices: bool = False
    vectors: Vectors | None = None
    is_causal: bool = False
    predicts_words: bool = False
    hub_tag: str | None = None
    call: str | None = None

    @property
    def choices(self) -> int | None:
        """The choices in an example input; `None` if a feature is one text."""
        return CHOICES if self.has_choices else None

    @property
    def has_head(self) -> bool:
        """Whether the models have a head of transformers, and not the encoder alone."""
        return self.vectors not in ("sentence", "spans", "tokens")

    @property
    def is_of_whole_texts(self) -> bool:
        """Whether a text or pair gets one vector, or classes, as in sentence-transformers."""
        return self.vectors == "sentence" or (self.has_classes and not self.of_tokens)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Settings of tasks, under transformers' names. Each task reads its own.

    Attributes:
        doc_stride: Tokens that two consecutive windows of one context share. Question answering.
        n_best_size: How many start and end positions are paired. Question answering.
        max_answer_length: Longest answer in tokens. Question answering.
        null_score_diff_threshold: "No answer" is returned if its score exceeds the best answer's by
            more than this. Question answering with unanswerable questions.
        mlm_probability: Share of the tokens that are masked. Masked language models.
        hypothesis_template: Sentence about a label, whose place is `{}`. Zero-shot classification.
        entailment_label: Name of the class that says that a text entails a sentence; empty for the
            one whose name begins with "entail". Zero-shot classification.
        decision_temperature: What logits of labels are divided by before they become the
            probabilities of decisions. Zero-shot classification.
        seed: Seed of the choice of masked tokens.
    """

    doc_stride: int = 128
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float = 0.0
    mlm_probability: float = 0.15
    hypothesis_template: str = HYPOTHESIS
    entailment_label: str = ""
    decision_temperature: float = 1.0
    seed: int = 0


TASK_KINDS: Mapping[str, TaskKind] = {
    "entity-extraction": TaskKind(
        auto_class="AutoModel",
        head="feature-extraction",
        outputs=("last_hidden_state",),
        of_tokens=True,
        rank=3,
        vectors="spans",
        # The hub has no tag for it; gliner's models use this one.
        hub_tag="token-classification",
        call='model("Ada Lovelace lived in London.", labels=["person", "city"])',
    ),
    "feature-extraction": TaskKind(
        auto_class="AutoModel",
        # The last four are DPR's, CLIP's and NeoBERT's.
        architectures=(
            *("Model", "GenerationEncoder", "ContextEncoder", "QuestionEncoder"),
            *("ModelWithProjection", "NeoBERT"),
        ),
        outputs=("last_hidden_state",),
        of_tokens=True,
        rank=3,
        vectors="sentence",
        call='model.encode(["A fine film.", "A dull one."])',
    ),
    "fill-mask": TaskKind(
        auto_class="AutoModelForMaskedLM",
        architectures=("ForMaskedLM", "NeoBERTLMHead", "NomicBertForPreTraining"),
        reader="fill_mask",
        of_tokens=True,
        rank=3,
        predicts_words=True,
    ),
    "multi-vector-embedding": TaskKind(
        auto_class="AutoModel",
        head="feature-extraction",
        outputs=("token_embeddings",),
        of_tokens=True,
        rank=3,
        vectors="tokens",
        # The hub has no tag for it; sentence-transformers uses this one.
        hub_tag="feature-extraction",
        call='model.rank("what do cats eat", ["Cats eat mice.", "A fine film."])',
    ),
    "multiple-choice": TaskKind(
        auto_class="AutoModelForMultipleChoice",
        architectures=("ForMultipleChoice",),
        reader="choose",
        outputs_of_head=1,
        has_choices=True,
        call='model(context="It rains.", choices=["I stay home.", "I swim."])',
    ),
    "next-sentence-prediction": TaskKind(
        auto_class="AutoModelForNextSentencePrediction",
        architectures=("ForNextSentencePrediction",),
        reader="follow",
        outputs_of_head=2,
        takes_pairs=True,
        # The hub has no name for it.
        hub_tag="text-classification",
        call='model(("It rains.", "I stay home."))',
    ),
    "question-answering": TaskKind(
        auto_class="AutoModelForQuestionAnswering",
        architectures=("ForQuestionAnswering",),
        reader="answer",
        outputs=("start_logits", "end_logits"),
        outputs_of_head=2,
        counts_classes=True,
        of_tokens=True,
        takes_pairs=True,
        call='model(question="Who sat?", context="A cat sat on the mat.")',
    ),
    "reranking": TaskKind(
        auto_class="AutoModelForSequenceClassification",
        head="text-classification",
        has_classes=True,
        outputs_of_head=1,
        counts_classes=True,
        takes_pairs=True,
        hub_tag="text-ranking",
        call='model.predict([("what do cats eat", "Cats eat mice.")])',
    ),
    "sparse-embedding": TaskKind(
        auto_class="AutoModelForMaskedLM",
        head="fill-mask",
        outputs=("sparse_embedding",),
        vectors="sparse",
        # The hub has no tag for it; sentence-transformers uses this one.
        hub_tag="feature-extraction",
        call='model.encode(["A fine film.", "A dull one."])',
    ),
    "text-classification": TaskKind(
        auto_class="AutoModelForSequenceClassification",
        architectures=("ForSequenceClassification",),
        reader="classify",
        has_classes=True,
        counts_classes=True,
        call='model(["A fine film.", "A dull one."])',
    ),
    "text-generation": TaskKind(
        auto_class="AutoModelForCausalLM",
        architectures=("LMHeadModel", "ForCausalLM"),
        head="fill-mask",
        of_tokens=True,
        rank=3,
        is_causal=True,
        predicts_words=True,
    ),
    "token-classification": TaskKind(
        auto_class="AutoModelForTokenClassification",
        architectures=("ForTokenClassification",),
        reader="classify_tokens",
        of_tokens=True,
        rank=3,
        has_classes=True,
        counts_classes=True,
        call='model("Ada Lovelace lived in London.", aggregation_strategy="simple")',
    ),
    "zero-shot-classification": TaskKind(
        auto_class="AutoModelForSequenceClassification",
        head="text-classification",
        has_classes=True,
        counts_classes=True,
        takes_pairs=True,
        names_labels=True,
        call='model("A fine film.", candidate_labels=["praise", "complaint"])',
    ),
}


def unknown_task(architecture: str) -> UserInputError:
    """Return the error for a class of transformers whose name says no task."""
    return UserInputError(
        f"The task of architecture `{architecture}` is not known. Pass `task`, one of: "
        f"{', '.join(TASK_NAMES)}.",
        argument="task",
    )


def check_classes(
    task: str, names: Mapping[int, str], *, where: str, outputs: int | None = None
) -> None:
    """Refuse classes that models of a task do not have, or whose numbers do not count from 0.

    Args:
        task: The task.
        names: Names of the classes by number.
        where: The config.json that they come from.
        outputs: Number of outputs of the model's head, if it is known.

    Raises:
        UserInputError: The task is "reranking", and there are several classes; or it is
            "zero-shot-classification", and none of them is entailment.
        CheckpointError: The numbers have a gap or start above 0, there is no class, or the task
            or the head has another number of outputs.
    """
    kind, count = TASK_KINDS.get(task), len(names)
    if kind is None:
        # The folder of another version, which `load` refuses.
        return
    if task == "reranking" and count > 1:
        raise UserInputError(
            f"`task='reranking'` needs a model with one output, the score of a pair; this one has "
            f"{count} classes. Pass task `text-classification`.",
            argument="task",
        )
    wanted = kind.outputs_of_head
    if wanted is None or kind.counts_classes:
        if wanted not in (None, count) or outputs not in (None, count):
            raise CheckpointError(
                f"The number of classes in {where!r} is {count} (`num_labels`, `id2label`), and "
                f"the number of outputs of the model's head is {outputs or wanted}. Use the "
                "config.json of these weights."
            )
    elif outputs not in (None, wanted):
        raise CheckpointError(
            f"The number of outputs of the model's head is {outputs}, and for `{task}` it has to "
            f"be {wanted}. Pass the task that it was trained for."
        )
    if task == "zero-shot-classification":
        entailment_of(names, where=where)
    if kind.has_classes and (not names or names.keys() != set(range(count))):
        found = ", ".join(map(str, sorted(names)[:_MOST_SHOWN])) or "none"
        raise CheckpointError(
            f"`id2label` in {where!r} names the classes {found}: expected each number from 0 to "
            "one less than the number of classes. Correct it in a copy of the folder."
        )


class Entailment(NamedTuple):
    """The numbers of the classes of entailment and of contradiction."""

    own: int
    opposite: int


def names_entailment(names: Mapping[int, str]) -> bool:
    """Return whether one of several classes is called entailment."""
    return len(names) > 1 and any(each.lower().startswith(_ENTAILMENT) for each in names.values())


def entailment_of(
    names: Mapping[int, str], *, where: str, named: str | None = None
) -> Entailment | None:
    """Return the classes of a model that says whether a text entails another one.

    As in transformers, entailment is the first class whose name begins so. The other one is the
    first class, or the last one if entailment is the first.

    Args:
        names: Names of the classes by number.
        where: What has them, for messages.
        named: Name of the class of entailment, if the user names it.

    Returns:
        The classes; `None` if they have no names, as LABEL_0, and none is named.

    Raises:
        UserInputError: The classes have other names, or there is one class only, or none has the
            name.
    """
    ordered = [names[number] for number in sorted(names)]
    known = [name.lower() for name in ordered]
    if named:
        own = known.index(named.lower()) if named.lower() in known else None
    else:
        own = next(
            (place for place, name in enumerate(known) if name.startswith(_ENTAILMENT)), None
        )
    if own is not None and len(known) > 1:
        return Entailment(own, len(known) - 1 if own == 0 else 0)
    if not named and len(known) > 1 and all(map(NO_NAME.fullmatch, known)):
        return None
    shown = ", ".join(map(repr, ordered[:_MOST_SHOWN]))
    if named and own is None:
        raise UserInputError(
            f"`entailment_label={named!r}` is not a class of {where!r}. It has: {shown}.",
            argument="entailment_label",
        )
    raise UserInputError(
        # A call may name labels, and not the task.
        "Labels of a call, as for the task 'zero-shot-classification', need a model that was "
        f"trained for natural language inference, with a class of entailment. {where!r} has: "
        f"{shown}. If one of several classes means it, rename it 'entailment' in `id2label` of a "
        "copy of its config.json.",
        argument="task",
    )


def is_use_of(wanted: str | None, task: str) -> bool:
    """Return whether a task uses models of another one as they are: with labels of a call."""
    kind = TASK_KINDS.get(wanted or "")
    return kind is not None and kind.names_labels and kind.head == task


def has_other_use(task: str) -> bool:
    """Return whether another task uses models of a task with labels of a call."""
    return any(is_use_of(each, task) for each in TASK_KINDS)


def head_of(task: str) -> str:
    """Return the task under which `tasks_of` names the head of a task.

    Rerankers have the head of text classifiers, with one output. Sparse embedders have more than
    the head of a masked language model.
    """
    kind = TASK_KINDS[task]
    is_own = kind.architectures or kind.head is None or kind.vectors == "sparse"
    return task if is_own else str(kind.head)


def tasks_of(config: Any) -> list[TaskName | None]:
    """Return the task of each architecture in a config, `None` for an unknown architecture.

    Args:
        config: A config of transformers. Without `architectures` it counts as an encoder's.
    """
    architectures = architectures_of(getattr(config, "architectures", None))
    return [task_of_architecture(architecture) for architecture in architectures or ["Model"]]


def architectures_of(value: object) -> list[str]:
    """Return the names of classes in the field `architectures` of a config; none for null.

    Raises:
        CheckpointError: It is something else than a list of texts.
    """
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise CheckpointError(
            f"`architectures` in config.json has to be a list of names, got {value!r:.80}. Correct "
            "it in a copy of the folder."
        )
    return names


def task_of_architecture(architecture: str) -> TaskName | None:
    """Return the task of a class such as `BertForMaskedLM`; `None` for an unknown one."""
    matches: list[tuple[int, TaskName]] = [
        (len(end), task)
        for task in TASK_NAMES
        for end in TASK_KINDS[task].architectures
        if architecture.endswith(end)
    ]
    return max(matches)[1] if matches else None
