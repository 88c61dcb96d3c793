"""Examples to calibrate on, and other examples to compare INT8 with float on."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from qdqbert import resources
from qdqbert.errors import UserInputError, naming
from qdqbert.tasks.data import Dataset, fingerprint
from qdqbert.tasks.task import Task
from qdqbert.verbs.quantize.options import QuantizeOptions
from qdqbert.verbs.settings import columns_of

# Most held-out examples; and their share of the data, which is one of this many.
_HELDOUT = 120
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
        notices: Messages for the user.
    """

    calibration: tuple[Any, ...]
    heldout: tuple[Any, ...]
    takes_pairs: bool | None
    notices: tuple[str, ...]


def choose_examples(
    task: Task,
    options: QuantizeOptions,
    *,
    id2label: Mapping[int, str],
    known: Collection[str] | None,
) -> ChosenExamples:
    """Read the data, and draw calibration and held-out examples.

    Args:
        task: Task of the model.
        options: Options of the call.
        id2label: Labels of the model.
        known: Fingerprints of the examples that stored ranges were taken from; `None` if the
            ranges are calibrated in this call.

    Raises:
        UserInputError: The data is missing, or no example is left to compare on.
    """
    built_in: Sequence[Any] = ()
    takes_pairs: bool | None = None
    if options.calibration_data is None:
        if not task.reads_texts:
            raise UserInputError(
                f"`calibration_data` is missing. Task {task.name!r} can neither be calibrated nor "
                "compared on the built-in sentences. Pass training data of the task.",
                argument="calibration_data",
            )
        pool, built_in = list(resources.calibration_examples()), resources.heldout_examples()
        notices = []
        if known is not None:
            notices.append(
                "Fidelity is measured on built-in sentences. Pass examples of your task as "
                "`calibration_data`."
            )
    else:
        with naming("calibration_data"):
            dataset = task.read(
                options.calibration_data, columns=columns_of(options), max_examples=None
            )
        pool, notices = list(dataset.examples), list(dataset.notices)
        takes_pairs = _has_pairs(dataset)
    wanted = options.calibration_samples
    if known is not None:
        wanted = 0
        pool = [example for example in pool if fingerprint(example) not in known]
    random.Random(options.seed).shuffle(pool)
    holds_out = options.eval_data is None and not built_in
    held = _count_heldout(len(pool), wanted, task) if holds_out else 0
    used = pool[: min(wanted, len(pool) - held)]
    calibrated = {fingerprint(each) for each in used} | set(known or ())
    if len(used) < wanted and not held:
        notices.append(f"Calibrated on {len(used)} examples, as the data has no more.")
    if options.eval_data is not None:
        evaluated = _read_labeled(task, options, id2label, calibrated)
        return ChosenExamples(
            calibration=tuple(used),
            heldout=evaluated.examples,
            takes_pairs=takes_pairs or _has_pairs(evaluated),
            notices=(*notices, *evaluated.notices),
        )
    # A text can occur twice.
    rest = [each for each in pool[len(used) :] if fingerprint(each) not in calibrated][:_HELDOUT]
    heldout, reason = _heldout(task, rest, built_in, wanted=wanted, used=len(used))
    return ChosenExamples(
        calibration=tuple(used),
        heldout=tuple(heldout),
        takes_pairs=takes_pairs,
        notices=(*notices, *reason),
    )


def _count_heldout(count: int, wanted: int, task: Task) -> int:
    """Return how many examples to hold out of `count`, of which `wanted` should calibrate.

    None if a task that the built-in sentences fit would have too few.
    """
    held = max(count - wanted, count // _HELDOUT_SHARE, min(_FEWEST_HELDOUT, count // 2))
    return 0 if task.reads_texts and held < _FEWEST_HELDOUT else min(held, _HELDOUT)


def _has_pairs(dataset: Dataset) -> bool:
    return dataset.columns.text_pair is not None


def _read_labeled(
    task: Task,
    options: QuantizeOptions,
    id2label: Mapping[int, str],
    calibrated: Collection[str],
) -> Dataset:
    """Read the examples to evaluate on, without those that ranges are taken from.

    Raises:
        UserInputError: The file cannot be used, an example has no label, or none is left.
    """
    assert options.eval_data is not None
    with naming("eval_data"):
        dataset = task.read(options.eval_data, columns=columns_of(options), max_examples=None)
        dataset = task.read_labels(dataset, id2label)
        task.check_metrics(dataset, id2label)
    kept = tuple(each for each in dataset.examples if fingerprint(each) not in calibrated)
    if not kept:
        raise UserInputError(
            f"`eval_data={options.eval_data!r}` contains only examples that ranges are taken from. "
            "Pass other examples.",
            argument="eval_data",
        )
    left_out = len(dataset) - len(kept)
    if not left_out:
        return dataset
    notice = f"{left_out} examples of `eval_data` are left out, as ranges are taken from them."
    return dataclasses.replace(dataset, examples=kept, notices=(*dataset.notices, notice))


def _heldout(
    task: Task, rest: Sequence[Any], built_in: Sequence[Any], *, wanted: int, used: int
) -> tuple[Sequence[Any], list[str]]:
    """Return held-out examples, and a notice if they are not from the data."""
    if built_in:
        return built_in, []
    if not rest and not task.reads_texts:
        raise UserInputError(
            f"All {used} examples of `calibration_data` are used to calibrate, and none is left to "
            "compare with float. Pass more examples, or fewer `calibration_samples`."
            if wanted
            else "`calibration_data` contains only examples that the ranges were taken from, and "
            "none is left to compare with float. Pass other examples.",
            argument="calibration_data",
        )
    if len(rest) < _FEWEST_HELDOUT and task.reads_texts:
        return resources.heldout_examples(), [
            f"Only {len(rest)} examples of `calibration_data` are not used to calibrate, so "
            "fidelity is measured on built-in sentences. Pass more data, at least "
            f"{2 * _FEWEST_HELDOUT} different examples."
        ]
    if used < wanted:
        return rest, [
            f"Calibrated on {used} examples of `calibration_data`. {len(rest)} others are held "
            "out, and INT8 is compared with float on them."
        ]
    return rest, []
