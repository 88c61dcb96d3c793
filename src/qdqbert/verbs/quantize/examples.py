"""Examples to calibrate on, and other examples to compare INT8 with float on."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from qdqbert import resources
from qdqbert.errors import DataFileError, UserInputError, naming
from qdqbert.tasks.data import Dataset, fingerprint
from qdqbert.tasks.task import Task
from qdqbert.verbs.quantize.options import QuantizeOptions

# Most held-out examples, without labels and with them; and their share of the data, which is one of
# this many.
_HELDOUT = 120
_LABELED_HELDOUT = 1000
_HELDOUT_SHARE = 5
# With fewer held-out examples than this, built-in sentences are used.
_FEWEST_HELDOUT = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenExamples:
    """Examples of one call.

    Attributes:
        calibration: Examples that ranges are taken from; empty if stored ranges are used.
        heldout: Other examples, to compare INT8 with float on.
        takes_pairs: Whether the user's examples are pairs of texts; `None` without any.
        labeled_data: The data that the held-out examples are from, if they have labels.
        notices: Messages for the user.
    """

    calibration: tuple[Any, ...]
    heldout: tuple[Any, ...]
    takes_pairs: bool | None
    labeled_data: str | None = None
    notices: tuple[str, ...]


def choose_examples(
    task: Task,
    options: QuantizeOptions,
    *,
    id2label: Mapping[int, str],
    known: Collection[str] | None,
) -> ChosenExamples:
    """Read the data, and draw calibration and held-out examples.

    Data for one of the two are split. Held-out examples that have labels are evaluated.

    Args:
        task: Task of the model.
        options: Options of the call.
        id2label: Labels of the model.
        known: Fingerprints of the examples that stored ranges were taken from; `None` if the
            ranges are calibrated in this call.

    Raises:
        UserInputError: The data is missing, no example is left to compare on, or labels are
            needed and missing.
    """
    if options.calibration_data is not None and options.eval_data is not None:
        chosen = _from_both(task, options, id2label, known)
    elif options.calibration_data is not None:
        chosen = _from_calibration_data(task, options, id2label, known)
    elif options.eval_data is not None:
        chosen = _from_eval_data(task, options, id2label, known)
    else:
        chosen = _built_in(task, options, known)
    if options.limits.max_drop is not None and chosen.labeled_data is None:
        raise UserInputError(
            f"`max_drop={options.limits.max_drop:g}` compares metrics, which need labels. Pass "
            "labeled examples as `eval_data`.",
            argument="max_drop",
        )
    return chosen


def _from_both(
    task: Task,
    options: QuantizeOptions,
    id2label: Mapping[int, str],
    known: Collection[str] | None,
) -> ChosenExamples:
    """Calibrate on one data set, and evaluate on the other."""
    dataset = _read(task, options, "calibration_data")
    pool = _shuffled(dataset.examples, options, known)
    wanted = options.calibration.samples if known is None else 0
    used, notices = pool[:wanted], list(dataset.notices)
    if len(used) < wanted:
        notices.append(_no_more(used))
    evaluated = _read_labeled(task, options, id2label)
    kept = _without_texts(evaluated.examples, used, known)
    if not kept:
        raise _nothing_left(options)
    notices += [*evaluated.notices, *_left_out(len(evaluated) - len(kept))]
    return ChosenExamples(
        calibration=tuple(used),
        heldout=tuple(kept),
        takes_pairs=_has_pairs(dataset) or _has_pairs(evaluated),
        labeled_data=evaluated.path,
        notices=tuple(notices),
    )


def _from_calibration_data(
    task: Task,
    options: QuantizeOptions,
    id2label: Mapping[int, str],
    known: Collection[str] | None,
) -> ChosenExamples:
    """Calibrate on a part of the data, and compare on the rest: with metrics, if it has labels."""
    dataset = _read(task, options, "calibration_data")
    dataset, is_labeled, reasons = _with_labels(task, dataset, options, id2label)
    pool = _shuffled(dataset.examples, options, known)
    wanted = options.calibration.samples if known is None else 0
    most = _LABELED_HELDOUT if is_labeled else _HELDOUT
    used = pool[: min(wanted, len(pool) - _count_heldout(len(pool), wanted, task, most))]
    rest = _rest(pool[len(used) :], used, known)
    heldout: Sequence[Any] = rest[:most]
    if len(heldout) < _FEWEST_HELDOUT and task.reads_texts:
        if len(used) < wanted:
            reasons.append(_no_more(used))
        reasons.append(
            f"Only {len(rest)} examples of `calibration_data` are not used to calibrate, so "
            "fidelity is measured on built-in sentences. Pass more data, at least "
            f"{2 * _FEWEST_HELDOUT} different examples."
        )
        heldout, is_labeled = resources.heldout_examples(), False
    elif not heldout:
        raise UserInputError(
            f"All {len(used)} examples of `calibration_data` are used to calibrate, and none is "
            "left to compare with float. Pass more examples, or fewer `calibration_samples`."
            if wanted
            else "`calibration_data` contains only examples that the ranges were taken from, and "
            "none is left to compare with float. Pass other examples.",
            argument="calibration_data",
        )
    elif is_labeled and (problem := _metrics_problem(task, dataset, heldout, options, id2label)):
        reasons.append(problem)
        is_labeled = False
    elif is_labeled:
        reasons.append(_split_notice("calibration_data", used, heldout, rest))
    elif len(used) < wanted:
        reasons.append(
            f"Calibrated on {len(used)} examples of `calibration_data`. {len(rest)} others are "
            "held out, and INT8 is compared with float on them."
        )
    return ChosenExamples(
        calibration=tuple(used),
        heldout=tuple(heldout),
        takes_pairs=_has_pairs(dataset),
        labeled_data=dataset.path if is_labeled else None,
        notices=(*dataset.notices, *reasons),
    )


def _from_eval_data(
    task: Task,
    options: QuantizeOptions,
    id2label: Mapping[int, str],
    known: Collection[str] | None,
) -> ChosenExamples:
    """Calibrate on a part of the labeled data, half of them at most, and evaluate on the rest."""
    dataset = _read_labeled(task, options, id2label)
    pool = _shuffled(dataset.examples, options, known)
    wanted = options.calibration.samples if known is None else 0
    used: Sequence[Any] = pool[: min(wanted, len(pool) // 2)]
    reasons = []
    if wanted and len(used) < min(wanted, _FEWEST_HELDOUT) and task.reads_texts:
        used = _calibration_sentences(options, known)
        rest = _rest(pool, used, known)
        reasons.append(
            "`eval_data` has too few examples to calibrate on some of them, so built-in English "
            "sentences are used. Pass texts of your own as `calibration_data`."
        )
    else:
        rest = _rest(pool[len(used) :], used, known)
    if not rest or len(used) < min(wanted, 1):
        raise _nothing_left(options)
    if known is None and not reasons:
        reasons.append(_split_notice("eval_data", used, rest, rest))
    elif known is not None:
        reasons += _left_out(len(dataset) - len(rest))
    _metrics_problem(task, dataset, rest, options, id2label)
    return ChosenExamples(
        calibration=tuple(used),
        heldout=tuple(rest),
        takes_pairs=_has_pairs(dataset),
        labeled_data=dataset.path,
        notices=(*dataset.notices, *reasons),
    )


def _built_in(
    task: Task, options: QuantizeOptions, known: Collection[str] | None
) -> ChosenExamples:
    """Calibrate and compare on the built-in sentences."""
    if not task.reads_texts:
        raise UserInputError(
            f"`calibration_data` is missing. Task {task.name!r} can neither be calibrated nor "
            "compared on the built-in sentences. Pass training data of the task.",
            argument="calibration_data",
        )
    notices = []
    if known is not None:
        notices.append(
            "Fidelity is measured on built-in sentences. Pass examples of your task as "
            "`calibration_data`."
        )
    elif options.model is not None:
        notices.append(
            "Calibrated on built-in English sentences. Pass texts of your own as "
            "`calibration_data` for ranges that fit them."
        )
    return ChosenExamples(
        calibration=tuple(_calibration_sentences(options, known)),
        heldout=tuple(resources.heldout_examples()),
        takes_pairs=None,
        notices=tuple(notices),
    )


def _calibration_sentences(
    options: QuantizeOptions, known: Collection[str] | None
) -> Sequence[Any]:
    """Draw built-in sentences to calibrate on; none if the ranges are known."""
    if known is not None:
        return ()
    return _shuffled(resources.calibration_examples(), options, None)[: options.calibration.samples]


def _read(task: Task, options: QuantizeOptions, argument: str) -> Dataset:
    with naming(argument):
        return task.read(getattr(options, argument), columns=options.columns, max_examples=None)


def _read_labeled(task: Task, options: QuantizeOptions, id2label: Mapping[int, str]) -> Dataset:
    """Read the examples to evaluate on.

    Raises:
        UserInputError: The file cannot be used, or an example has no label.
    """
    dataset = _read(task, options, "eval_data")
    with naming("eval_data"):
        dataset = task.read_labels(dataset, id2label)
        task.check_metrics(dataset, id2label)
    return dataset


def _with_labels(
    task: Task, dataset: Dataset, options: QuantizeOptions, id2label: Mapping[int, str]
) -> tuple[Dataset, bool, list[str]]:
    """Return calibration data with labels, if it has some that can be scored.

    Returns:
        The data, whether all have labels, and why not, if there is a column of them.

    Raises:
        UserInputError: The call needs the labels, and they cannot be scored.
    """
    try:
        return task.read_labels(dataset, id2label), True, []
    except DataFileError as error:
        _raise_if_needed(error, options)
        has_column = dataset.columns.label is not None
        return dataset, False, [_no_metrics(error)] if has_column else []


def _metrics_problem(
    task: Task,
    dataset: Dataset,
    heldout: Sequence[Any],
    options: QuantizeOptions,
    id2label: Mapping[int, str],
) -> str | None:
    """Return why the metrics of held-out examples are not defined; `None` if they are.

    Raises:
        UserInputError: The call needs the metrics, and they are not defined.
    """
    try:
        task.check_metrics(dataclasses.replace(dataset, examples=tuple(heldout)), id2label)
    except DataFileError as error:
        _raise_if_needed(error, options)
        return _no_metrics(error)
    return None


def _raise_if_needed(error: DataFileError, options: QuantizeOptions) -> None:
    """Raise an error about labels if the call cannot do without metrics."""
    asked = (options.eval_data, options.columns.label, options.limits.max_drop)
    if any(each is not None for each in asked):
        raise error


def _no_metrics(error: DataFileError) -> str:
    return f"No metrics are computed: {error}"


def _shuffled(
    examples: Sequence[Any], options: QuantizeOptions, known: Collection[str] | None
) -> list[Any]:
    """Return examples in the order of the seed, without those that ranges were taken from.

    The documents of a query stay together.
    """
    left = [each for each in examples if fingerprint(each) not in (known or ())]
    groups: dict[Hashable, list[Any]] = {}
    for index, each in enumerate(left):
        groups.setdefault(getattr(each, "group", index), []).append(each)
    drawn = list(groups.values())
    random.Random(options.calibration.seed).shuffle(drawn)
    return [each for group in drawn for each in group]


def _without_texts(
    examples: Sequence[Any], used: Sequence[Any], known: Collection[str] | None
) -> list[Any]:
    """Return the examples whose texts are not among those that are calibrated on."""
    calibrated = {fingerprint(each) for each in used} | set(known or ())
    return [each for each in examples if fingerprint(each) not in calibrated]


def _rest(examples: Sequence[Any], used: Sequence[Any], known: Collection[str] | None) -> list[Any]:
    """Return the examples whose texts and queries are not among those that are calibrated on."""
    queries = {each.group for each in used if hasattr(each, "group")}
    return [
        each
        for each in _without_texts(examples, used, known)
        if getattr(each, "group", None) not in queries
    ]


def _count_heldout(count: int, wanted: int, task: Task, most: int) -> int:
    """Return how many examples to hold out of `count`, of which `wanted` should calibrate.

    None if a task that the built-in sentences fit would have too few.

    Args:
        count: Number of examples.
        wanted: Number of examples to calibrate on.
        task: The task.
        most: Number of examples to hold out at most.
    """
    held = max(count - wanted, count // _HELDOUT_SHARE, min(_FEWEST_HELDOUT, count // 2))
    return 0 if task.reads_texts and held < _FEWEST_HELDOUT else min(held, most)


def _has_pairs(dataset: Dataset) -> bool:
    return dataset.columns.text_pair is not None


def _no_more(used: Sequence[Any]) -> str:
    return f"Calibrated on {len(used)} examples, as the data has no more."


def _split_notice(
    argument: str, used: Sequence[Any], heldout: Sequence[Any], rest: Sequence[Any]
) -> str:
    """Say how many examples of one data set were calibrated on, and how many are evaluated."""
    count = (
        f"{len(heldout):,}" if len(heldout) == len(rest) else f"{len(heldout):,} of {len(rest):,}"
    )
    if not used:
        return f"Metrics are of {count} examples of `{argument}`."
    return (
        f"`{argument}` was split by the seed: {len(used):,} examples were calibrated on, and "
        f"metrics are of {count} others."
    )


def _left_out(count: int) -> list[str]:
    if not count:
        return []
    return [f"{count} examples of `eval_data` are left out, as ranges are taken from them."]


def _nothing_left(options: QuantizeOptions) -> UserInputError:
    return UserInputError(
        f"`eval_data={options.eval_data!r}` contains only examples that ranges are taken from. "
        "Pass other examples.",
        argument="eval_data",
    )
