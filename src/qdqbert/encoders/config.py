"""`config.json`, whose fields are checked when they are read."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from qdqbert.common.errors import CheckpointError
from qdqbert.encoders.model import Activation
from qdqbert.encoders.task_kinds import check_classes

# Names of transformers' activation functions.
_ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
_PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")
MOST_CLASSES = 2**22
"""More classes than any head has, and few enough to name them all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """A checkpoint's `config.json`. Methods raise `CheckpointError` for missing and wrong fields.

    Attributes:
        values: Its content.
        path: Its path, for messages.
    """

    values: Mapping[str, Any]
    path: str = "config.json"

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, *, null: int | None = None, least: int = 0) -> int:
        """Return a whole number from `least` on. `null` is what null stands for, if anything."""
        found = self._field(name, null)
        if type(found) is not int or not least <= found < 2**31:
            raise self._wrong(name, found, f"a whole number from {least}")
        return found

    def number(self, name: str, *, least: float = -1e30) -> float:
        """Return a number from `least` on."""
        found = self._field(name)
        if type(found) not in (int, float) or not least <= found < 1e30:
            from_least = "" if least < 0 else f" from {least:g}"
            raise self._wrong(name, found, f"a number{from_least}")
        return float(found)

    def flag(self, name: str, *, null: bool | None = None) -> bool:
        """Return a truth value. `null` is what null stands for; none refuses it."""
        found = self._field(name, null)
        if not isinstance(found, bool):
            raise self._wrong(name, found, "true or false")
        return found

    def text(self, name: str, *, null: str | None = None) -> str:
        """Return a string. `null` is what null stands for; none refuses it."""
        found = self._field(name, null)
        if not isinstance(found, str):
            raise self._wrong(name, found, "a string")
        return found

    def activation(self, name: str) -> Activation:
        """Return an activation function by transformers' name."""
        found = self.text(name)
        if found not in _ACTIVATIONS:
            raise self._wrong(name, found, f"one of {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[found]

    def with_classes(self, task: str, *, outputs: int | None = None) -> Config:
        """Return the config with an `id2label` that has a name for each class, by its number.

        `outputs` is the number of outputs of the model's head, if it is known.

        Raises:
            CheckpointError: A field is of a kind that transformers does not read, or the models of
                the task have other classes; see `check_classes`.
        """
        names = self.class_names()
        check_classes(task, names, where=self.path, outputs=outputs)
        values = {name: value for name, value in self.values.items() if name != "num_labels"}
        return dataclasses.replace(self, values={**values, "id2label": names})

    def class_names(self) -> dict[int, str]:
        """Return the names of classes by number, as transformers fills them in.

        There are `num_labels` of them, by default as many as `id2label` has, or two. The names are
        LABEL_0 and so on if `id2label` is missing or has another number of them. `label2id` is not
        read. Numbers can be any: `check_classes` refuses gaps.

        Raises:
            CheckpointError: `id2label`, `num_labels` or `problem_type` has a wrong value.
        """
        given = self.values.get("id2label")
        names = {} if given is None else self._names("id2label", given)
        count = self.values.get("num_labels", 2 if given is None else len(names))
        if given is None or count != len(names):
            if not isinstance(count, int) or not 0 <= count <= MOST_CLASSES:
                raise self._wrong("num_labels", count, "the number of classes, or no such field")
            names = {index: f"LABEL_{index}" for index in range(count)}
        problem = self.values.get("problem_type")
        if problem not in (None, *_PROBLEMS):
            raise self._wrong("problem_type", problem, f"one of {', '.join(_PROBLEMS)}, or null")
        if problem == "single_label_classification" and len(names) == 1:
            raise self.refuse(
                "problem_type", "there is one class. Set `regression` for a score, or null."
            )
        return names

    def contradicted_class(self) -> str | None:
        """Return a sentence about a class that `label2id` numbers otherwise than `id2label`.

        transformers' pipeline for zero-shot classification finds entailment by `label2id`, and
        names of classes by `id2label`.

        Returns:
            The sentence; `None` if there is no such class.
        """
        numbers = self.values.get("label2id")
        if not isinstance(numbers, Mapping):
            return None
        for number, name in self.class_names().items():
            # Names that it lacks, as those of a config that was changed by hand, say nothing.
            other = numbers.get(name, number)
            if other != number:
                return (
                    f"`label2id` in {self.path} gives {name!r:.80} the number {other!r:.20}, and "
                    f"`id2label` gives it {number}. `id2label` counts. If answers are the wrong "
                    "way round, correct it in a copy of the folder."
                )
        return None

    def _names(self, name: str, given: Any) -> dict[int, str]:
        """Return a field whose keys are whole numbers and whose values are names."""
        # Names of data sets without names are numbers or truth values.
        if isinstance(given, Mapping) and all(
            isinstance(each, str | int | float) for each in given.values()
        ):
            with contextlib.suppress(ValueError, TypeError):
                return {int(key): str(each) for key, each in given.items()}
        raise self._wrong(name, given, 'names by number, such as {"0": "no", "1": "yes"}')

    def refuse(self, name: str, reason: str) -> CheckpointError:
        """Return the error for an unsupported value of a field."""
        return CheckpointError(f"`{name}={self.values.get(name)!r:.80}` in {self.path}: {reason}")

    def _field(self, name: str, null: Any = None) -> Any:
        if name not in self.values:
            raise CheckpointError(f"{self.path} has no field `{name}`.")
        found = self.values[name]
        return null if found is None else found

    def _wrong(self, name: str, found: Any, expected: str) -> CheckpointError:
        return CheckpointError(
            f"`{name}={found!r:.80}` in {self.path} is not supported; expected {expected}."
        )
