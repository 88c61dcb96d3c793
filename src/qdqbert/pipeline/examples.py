"""Examples to calibrate on, and other examples to compare INT8 with float on."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Literal

from qdqbert.common.errors import DataFileError, UserInputError, naming
from qdqbert.common.objects import GivenData
from qdqbert.common.options.columns import Columns
from qdqbert.common.options.limits import Limits
from qdqbert.data import texts as resources
from qdqbert.data.rows.data import Dataset, fingerprint, read_data, without_rows
from qdqbert.data.rows.lines import counted
from qdqbert.evidence.intervals import fewest_trials
from qdqbert.pipeline.calls import CalibratingCall
from qdqbert.tasks.task import Task

# Most held-out examples, without labels and with them; and their share of the data, which is one of
# this many.
_HELDOUT = 120
_LABELED_HELDOUT = 1000
_HELDOUT_SHARE = 5
# Most held-out examples if there are limits, as a multiple of those that show them if INT8 equals
# float. A few changed predictions need more.
_LIMITS_HELDOUT = 4
# With fewer held-out examples than this, built-in sentences are used.
_FEWEST_HELDOUT = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The data of a call.

    Attributes:
        calibration_data: Data to calibrate on, if the call names some.
        eval_data: Labeled data to compare on, if the call names some.
        eval_name: Name of the parameter that gave it.
        columns: Columns of the data.
        samples: Number of examples to calibrate on.
        seed: Seed that draws them.
        max_heldout: Number of held-out examples at most; as many as usual if `None`.
        limits: Limits of the call. One of them needs labels, and some need many held-out examples.
        is_demo: Whether the model is the packaged one, which fits the built-in sentences.
    """

    calibration_data: GivenData | None = None
    eval_data: GivenData | None = None
    eval_name: str = "eval_data"
    columns: Columns = Columns()
    samples: int = 300
    seed: int = 0
    max_heldout: int | None = None
    limits: Limits = Limits()
    is_demo: bool = False

    @classmethod
    def of_call(cls, call: CalibratingCall, **others: Any) -> Data:
        """Return the data of a call, with `others` of the attributes."""
        return cls(
            calibration_data=call.calibration_data,
            columns=call.columns,
            samples=call.calibration.samples,
            seed=call.calibration.seed,
            **others,
        )

    @property
    def name(self) -> str:
        """Name of the data to calibrate on."""
        return str(self.calibration_data or "built-in")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenExamples:
    """Examples of one call.

    Attributes:
        calibration: Examples that ranges are taken from; empty if stored ranges are used.
        heldout: Other examples, to compare INT8 with float on.
        takes_pairs: Whether the user's examples are pairs of texts; `None` without any.
        labeled_data: The data that the held-out examples are from, if they have labels.
        is_split: Whether these are `calibration_data`, which the model may have been trained on.
    """

    calibration: Sequence[Any]
    heldout: Sequence[Any]
    takes_pairs: bool | None
    labeled_data: str | None = None
    is_split: bool = False
    notices: Sequence[str]


def choose_examples(
    data: Data,
    task: Task,
    id2label: Mapping[int, str],
    known: Collection[str] | None,
    trained: Collection[str] = (),
) -> ChosenExamples:
    """Read the data, and draw calibration and held-out examples.

    Data for one of the two are split. Held-out examples that have labels are evaluated.

    `known` are fingerprints of the examples that stored ranges were taken from; `None` if the
    ranges are calibrated in this call. `trained` are those of the examples that the model was
    trained on, as far as it is known. They can be calibrated on, and are not held out.

    Raises:
        UserInputError: The data is missing, no example is left to compare on, or labels are
            needed and missing.
    """
    draw = _Draw(data=data, task=task, id2label=id2label, known=known, trained=trained)
    if data.eval_data is None:
        chosen = draw.built_in() if data.calibration_data is None else draw.from_calibration_data()
    else:
        chosen = draw.from_eval_data() if data.calibration_data is None else draw.from_both()
    if data.limits.max_drop is not None and chosen.labeled_data is None:
        raise UserInputError(
            f"`max_drop={data.limits.max_drop:g}` compares metrics, which need labels. Pass "
            f"labeled examples as `{data.eval_name}`.",
            argument="max_drop",
        )
    return dataclasses.replace(
        chosen,
        calibration=tuple(chosen.calibration),
        heldout=tuple(chosen.heldout[: data.max_heldout]),
        notices=tuple(chosen.notices),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Draw:
    """Draws the examples of a call; see `choose_examples`."""

    data: Data
    task: Task
    id2label: Mapping[int, str]
    known: Collection[str] | None
    trained: Collection[str]

    @property
    def wanted(self) -> int:
        """Number of examples to calibrate on."""
        return self.data.samples if self.known is None else 0

    def from_both(self) -> ChosenExamples:
        """Calibrate on one data set, and evaluate on the other."""
        dataset = self._read("calibration_data")
        used, notices = self._shuffled(dataset.examples)[: self.wanted], list(dataset.notices)
        if len(used) < self.wanted:
            notices.append(_no_more(used))
        evaluated = self._read_labeled()
        kept = self._without_texts(evaluated.examples, used)
        if not kept:
            raise self._nothing_left()
        self._metrics_problem(evaluated, kept)
        notices += [*evaluated.notices, *self._left_out(evaluated.examples, kept)]
        return ChosenExamples(
            calibration=used,
            heldout=kept,
            takes_pairs=_has_pairs(dataset) or _has_pairs(evaluated),
            labeled_data=evaluated.path,
            notices=notices,
        )

    def from_calibration_data(self) -> ChosenExamples:
        """Calibrate on a part, and compare on the rest: with metrics, if it has labels."""
        dataset, is_labeled, reasons = self._with_labels(self._read("calibration_data"))
        pool, wanted = self._shuffled(dataset.examples), self.wanted
        most = self._most_heldout(is_labeled=is_labeled)
        new = sum(not self._is_trained(each) for each in pool)
        held = min(self._count_heldout(len(pool), most), new)
        used = pool[: min(wanted, len(pool) - held)]
        rest = self._rest(pool[len(used) :], used)
        heldout: Sequence[Any] = rest[:most]
        if len(heldout) < _FEWEST_HELDOUT and self.task.reads_texts:
            if len(used) < wanted:
                reasons.append(_no_more(used))
            reasons.append(
                f"Only {len(rest)} examples of `calibration_data` are not used to "
                f"{'train or ' if self.trained else ''}calibrate, so fidelity is measured on "
                f"built-in sentences. Pass more data, at least {2 * _FEWEST_HELDOUT} different "
                "examples."
            )
            heldout, is_labeled = resources.heldout_examples(), False
        elif not heldout:
            raise UserInputError(
                "`calibration_data` contains only examples that the model was trained on, and none "
                f"is left to compare with float. Pass others as `{self.data.eval_name}`."
                if self.trained and not new
                else f"All {len(used)} examples of `calibration_data` are used to calibrate, and "
                "none is left to compare with float. Pass more examples, or fewer "
                "`calibration_samples`."
                if wanted
                else "`calibration_data` contains only examples that the ranges were taken from, "
                "and none is left to compare with float. Pass other examples.",
                argument="calibration_data",
            )
        else:
            if is_labeled and (problem := self._metrics_problem(dataset, heldout)):
                reasons.append(problem)
                is_labeled = False
            elif is_labeled:
                reasons.append(_split_notice("calibration_data", used, heldout, rest))
            elif len(used) < wanted:
                reasons.append(
                    f"Calibrated on {len(used)} examples of `calibration_data`. {len(rest)} others "
                    "are held out, and INT8 is compared with float on them."
                )
            reasons += self._of_split(pool[len(used) :])
        return ChosenExamples(
            calibration=used,
            heldout=heldout,
            takes_pairs=_has_pairs(dataset),
            labeled_data=dataset.path if is_labeled else None,
            is_split=True,
            notices=(*dataset.notices, *reasons),
        )

    def from_eval_data(self) -> ChosenExamples:
        """Calibrate on a part of the labeled data, half at most, and evaluate on the rest."""
        dataset = self._read_labeled()
        pool, wanted = self._shuffled(dataset.examples), self.wanted
        used = pool[: min(wanted, len(pool) // 2)]
        is_small = len(used) < min(wanted, _FEWEST_HELDOUT) and self.task.reads_texts
        if is_small:
            used = self._sentences()
            rest = self._rest(pool, used)
        else:
            rest = self._rest(pool[len(used) :], used)
        if not rest or len(used) < min(wanted, 1):
            raise self._nothing_left()
        if is_small:
            reasons = [
                f"`{self.data.eval_name}` has too few examples to calibrate on some of them, so "
                "built-in English sentences are used. Pass texts of your own as `calibration_data`."
            ]
        elif self.known is None:
            reasons = [_split_notice(self.data.eval_name, used, rest, rest)]
            reasons += _trained_on(
                self.data.eval_name, sum(map(self._is_trained, pool[len(used) :]))
            )
        else:
            reasons = self._left_out(dataset.examples, rest)
        self._metrics_problem(dataset, rest)
        return ChosenExamples(
            calibration=used,
            heldout=rest,
            takes_pairs=_has_pairs(dataset),
            labeled_data=dataset.path,
            notices=(*dataset.notices, *reasons),
        )

    def built_in(self) -> ChosenExamples:
        """Calibrate and compare on the built-in sentences."""
        if not self.task.reads_texts:
            raise UserInputError(
                f"`calibration_data` is missing. Task {self.task.name!r} can neither be "
                "calibrated nor compared on the built-in sentences. Pass training data of the "
                "task.",
                argument="calibration_data",
            )
        notices = []
        if self.known is not None:
            notices.append(
                "Fidelity is measured on built-in sentences. Pass examples of your task as "
                "`calibration_data`."
            )
        elif not self.data.is_demo:
            notices.append(
                "Calibrated on built-in English sentences. Pass texts of your own as "
                "`calibration_data` for ranges that fit them."
            )
        return ChosenExamples(
            calibration=self._sentences(),
            heldout=resources.heldout_examples(),
            takes_pairs=None,
            notices=notices,
        )

    def _read(self, argument: Literal["calibration_data", "eval_data"]) -> Dataset:
        given = getattr(self.data, argument)
        with naming(self.data.eval_name if argument == "eval_data" else argument):
            return read_data(self.task.read, given, self.data.columns)

    def _read_labeled(self) -> Dataset:
        """Read the examples to evaluate on, all of which need a label."""
        dataset = self._read("eval_data")
        with naming(self.data.eval_name):
            dataset = self.task.read_labels(dataset, self.id2label)
            self.task.check_metrics(dataset, self.id2label)
        return dataset

    def _with_labels(self, dataset: Dataset) -> tuple[Dataset, bool, list[str]]:
        """Return data with labels that can be scored, whether all have some, and why not."""
        try:
            return self.task.read_labels(dataset, self.id2label), True, []
        except DataFileError as error:
            reason = self._no_metrics(error)
            return dataset, False, [reason] if dataset.has_labels else []

    def _metrics_problem(self, dataset: Dataset, heldout: Sequence[Any]) -> str | None:
        """Return why metrics of held-out examples are not defined; `None` if they are."""
        try:
            used = tuple(heldout[: self.data.max_heldout])
            of_heldout = dataclasses.replace(dataset, examples=used)
            self.task.check_metrics(of_heldout, self.id2label)
        except DataFileError as error:
            return self._no_metrics(error)
        return None

    def _no_metrics(self, error: DataFileError) -> str:
        """Turn an error about labels into a notice; raise it if the call needs metrics."""
        needs = (self.data.eval_data, self.data.columns.label, self.data.limits.max_drop)
        if any(each is not None for each in needs):
            raise error
        return f"No metrics are computed: {error}"

    def _sentences(self) -> list[Any]:
        """Draw built-in sentences to calibrate on; none if the ranges are known."""
        if self.known is not None:
            return []
        return self._shuffled(resources.calibration_examples())[: self.wanted]

    def _shuffled(self, examples: Sequence[Any]) -> list[Any]:
        """Return examples in the order of the seed, without those that ranges were taken from.

        The documents of a query stay together. Those that the model was trained on come first.
        """
        groups: dict[Hashable, list[Any]] = {}
        for index, each in enumerate(examples):
            if fingerprint(each) not in (self.known or ()):
                groups.setdefault(getattr(each, "group", index), []).append(each)
        drawn = list(groups.values())
        random.Random(self.data.seed).shuffle(drawn)
        drawn.sort(key=lambda group: not any(map(self._is_trained, group)))
        return [each for group in drawn for each in group]

    def _is_trained(self, example: Any) -> bool:
        return bool(self.trained) and fingerprint(example) in self.trained

    def _without_texts(self, examples: Sequence[Any], used: Sequence[Any]) -> list[Any]:
        """Return the examples whose texts are neither calibrated on nor trained on."""
        left_out = {*map(fingerprint, used), *(self.known or ()), *self.trained}
        return without_rows(examples, left_out)

    def _rest(self, examples: Sequence[Any], used: Sequence[Any]) -> list[Any]:
        """Return the examples whose texts and queries are not calibrated on."""
        queries = {each.group for each in used if hasattr(each, "group")}
        others = self._without_texts(examples, used)
        return [each for each in others if getattr(each, "group", None) not in queries]

    def _most_heldout(self, *, is_labeled: bool) -> int:
        """Return how many examples to hold out at most, so that limits can be shown."""
        limits = self.data.limits
        percents = [limits.max_flips, limits.max_drop if is_labeled else None]
        fewest = [fewest_trials(each / 100) for each in percents if each is not None]
        usual = _LABELED_HELDOUT if is_labeled else _HELDOUT
        return max([usual, *(_LIMITS_HELDOUT * count for count in fewest)])

    def _count_heldout(self, count: int, most: int) -> int:
        """Return how many of so many examples to hold out, and at most so many.

        None if a task that the built-in sentences fit would have too few.
        """
        held = max(count - self.wanted, count // _HELDOUT_SHARE, min(_FEWEST_HELDOUT, count // 2))
        return 0 if self.task.reads_texts and held < _FEWEST_HELDOUT else min(held, most)

    def _nothing_left(self) -> UserInputError:
        name = self.data.eval_name
        trained = " or that the model was trained on" if self.trained else ""
        return UserInputError(
            f"`{name}={self.data.eval_data!r}` contains only examples that ranges are taken "
            f"from{trained}. Pass other examples.",
            argument=name,
        )

    def _left_out(self, examples: Sequence[Any], kept: Sequence[Any]) -> list[str]:
        """Say how many of the examples to evaluate on are not kept, and why."""
        name, trained = self.data.eval_name, sum(map(self._is_trained, examples))
        calibrated = len(examples) - len(kept) - trained
        notices = _trained_on(name, trained)
        if calibrated:
            notices.append(
                f"{calibrated} examples of `{name}` are left out, as ranges are taken from them."
            )
        return notices

    def _of_split(self, others: Sequence[Any]) -> list[str]:
        """Say what the model has seen of the examples that are not calibrated on."""
        if self.trained:
            return _trained_on("calibration_data", sum(map(self._is_trained, others)))
        return [
            "INT8 is compared with float on rows of `calibration_data` that the model may have "
            "been trained on. It is surer of those than of new ones, so pass others as "
            f"`{self.data.eval_name}`."
        ]


def _has_pairs(dataset: Dataset) -> bool:
    return dataset.columns.text_pair is not None


def _no_more(used: Sequence[Any]) -> str:
    return f"Calibrated on {counted(len(used), 'example')}, as the data has no more."


def _split_notice(
    argument: str, used: Sequence[Any], heldout: Sequence[Any], rest: Sequence[Any]
) -> str:
    """Say how many examples of one data set were calibrated on, and how many are evaluated."""
    of_all = "" if len(heldout) == len(rest) else f" of {len(rest):,}"
    count = f"{len(heldout):,}{of_all}"
    if not used:
        return f"Metrics are of {count} examples of `{argument}`."
    return (
        f"`{argument}` was split by the seed: {len(used):,} examples were calibrated on, and "
        f"metrics are of {count} others."
    )


def _trained_on(argument: str, count: int) -> list[str]:
    """Say how many examples are not evaluated, as `training.json` has their fingerprints."""
    if not count:
        return []
    return [f"{count} examples of `{argument}` are left out: the model was trained on them."]
