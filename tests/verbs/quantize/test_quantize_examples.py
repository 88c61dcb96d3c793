"""The choice of calibration and held-out examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqbert import resources
from qdqbert.errors import UserInputError
from qdqbert.tasks.data import Columns, fingerprint
from qdqbert.tasks.registry import TASKS
from qdqbert.verbs.quantize.examples import choose_examples
from qdqbert.verbs.quantize.options import QuantizeOptions

TASK = TASKS["text-classification"]


@pytest.fixture
def data(write_file) -> Path:
    return write_file("texts.txt", "\n".join(f"text number {index}" for index in range(60)))


def options(**changes) -> QuantizeOptions:
    return QuantizeOptions(model="m", output="o", **changes)


def test_calibration_and_held_out_examples_are_drawn_by_the_seed(data) -> None:
    chosen, again, other = (
        choose_examples(
            TASK,
            options(calibration_data=data, calibration_samples=24, seed=seed),
            id2label={},
            known=None,
        )
        for seed in (0, 0, 1)
    )
    assert (len(chosen.calibration), len(chosen.heldout)) == (24, 36)
    assert not set(chosen.calibration) & set(chosen.heldout)
    assert chosen == again
    assert chosen.calibration != other.calibration
    assert chosen.notices == ()


@pytest.mark.parametrize(
    ("samples", "split"),
    [
        (300, (48, 12)),
        (50, (48, 12)),
        (48, (48, 12)),
        (40, (40, 20)),
    ],
)
def test_a_fifth_of_the_data_is_held_out(data, samples, split) -> None:
    chosen = choose_examples(
        TASK, options(calibration_data=data, calibration_samples=samples), id2label={}, known=None
    )
    assert (len(chosen.calibration), len(chosen.heldout)) == split
    assert not set(chosen.calibration) & set(chosen.heldout)
    assert all(example.text.startswith("text number") for example in chosen.heldout)
    notice = (
        "Calibrated on 48 examples of `calibration_data`. 12 others are held out, and INT8 is "
        "compared with float on them."
    )
    assert chosen.notices == ((notice,) if samples > 48 else ())


def test_nothing_is_held_out_of_data_next_to_labeled_ones(data, write_file) -> None:
    labeled = write_file("dev.csv", "text,label\na,0\nb,1\n")
    chosen = choose_examples(
        TASK,
        options(calibration_data=data, eval_data=labeled),
        id2label={0: "no", 1: "yes"},
        known=None,
    )
    assert (len(chosen.calibration), len(chosen.heldout)) == (60, 2)
    assert "Calibrated on 60 examples, as the data has no more." in chosen.notices


@pytest.mark.parametrize(("count", "own"), [(7, 0), (8, 4), (19, 4), (20, 4), (25, 5)])
def test_built_in_sentences_replace_too_few_examples(write_file, count, own) -> None:
    few = write_file("few.txt", "\n".join(f"text number {index}" for index in range(count)))
    chosen = choose_examples(TASK, options(calibration_data=few), id2label={}, known=None)
    assert len(chosen.calibration) == count - own
    if own:
        assert len(chosen.heldout) == own
    else:
        assert chosen.heldout == tuple(resources.heldout_examples())
        assert "Only 0 examples of `calibration_data` are not used" in chosen.notices[-1]
        assert "at least 8 different examples" in chosen.notices[-1]


def test_a_text_that_occurs_twice_is_not_on_both_sides(write_file) -> None:
    lines = [f"text number {index % 30}" for index in range(60)]
    twice = write_file("twice.txt", "\n".join(lines))
    chosen = choose_examples(TASK, options(calibration_data=twice), id2label={}, known=None)
    used = {fingerprint(example) for example in chosen.calibration}
    assert not used & {fingerprint(example) for example in chosen.heldout}
    same = write_file("same.txt", "the same text\n" * 60)
    chosen = choose_examples(TASK, options(calibration_data=same), id2label={}, known=None)
    assert chosen.heldout == tuple(resources.heldout_examples())


@pytest.mark.parametrize(("count", "held"), [(2, 1), (6, 3), (30, 6)])
def test_tasks_without_built_in_sentences_hold_out_of_any_number(write_file, count, held) -> None:
    sentences = "\n\n".join(f"the O\ncat{index} B-ANIMAL" for index in range(count))
    path = write_file("a.conll", sentences)
    chosen = choose_examples(
        TASKS["token-classification"], options(calibration_data=path), id2label={}, known=None
    )
    assert (len(chosen.calibration), len(chosen.heldout)) == (count - held, held)


def test_examples_that_stored_ranges_were_taken_from_are_left_out(data) -> None:
    first = choose_examples(
        TASK, options(calibration_data=data, calibration_samples=24), id2label={}, known=None
    )
    known = {fingerprint(example) for example in first.calibration}
    chosen = choose_examples(TASK, options(calibration_data=data), id2label={}, known=known)
    assert chosen.calibration == ()
    assert set(chosen.heldout) == set(first.heldout)


def test_built_in_sentences_replace_missing_data() -> None:
    chosen = choose_examples(TASK, options(), id2label={}, known=None)
    assert set(chosen.calibration) <= set(resources.calibration_examples())
    assert chosen.heldout == tuple(resources.heldout_examples())
    with_ranges = choose_examples(TASK, options(), id2label={}, known=())
    assert "Fidelity is measured on built-in sentences" in with_ranges.notices[0]


def test_whether_texts_are_pairs_is_known_from_data_of_the_user(write_file, data) -> None:
    rows = "\n".join(f"text {index}\tother text {index}\tPositive" for index in range(60))
    pairs = write_file("pairs.tsv", f"text\ttext_pair\tlabel\n{rows}")

    def takes_pairs(known=None, **changes):
        labels = {0: "Negative", 1: "Positive"}
        return choose_examples(TASK, options(**changes), id2label=labels, known=known).takes_pairs

    assert takes_pairs(calibration_data=pairs) is True
    assert takes_pairs(eval_data=pairs) is True
    assert takes_pairs(calibration_data=data) is False
    assert takes_pairs() is None
    assert takes_pairs(known=()) is None
    # Here, INT8 is compared with float on built-in sentences, which are no pairs.
    few = write_file("few.tsv", f"text\ttext_pair\tlabel\n{rows.splitlines()[0]}")
    assert takes_pairs(calibration_data=few) is True


def test_tasks_that_cannot_use_plain_texts_need_data(write_file) -> None:
    task = TASKS["token-classification"]
    with pytest.raises(UserInputError, match="`calibration_data` is missing") as caught:
        choose_examples(task, options(), id2label={}, known=None)
    assert caught.value.argument == "calibration_data"
    one = write_file("one.conll", "the O\ncat B-ANIMAL\n")
    with pytest.raises(UserInputError, match=r"All 1 examples .* are used to calibrate"):
        choose_examples(task, options(calibration_data=one), id2label={}, known=None)
    (example,) = task.read(str(one), columns=Columns(), max_examples=None).examples
    with pytest.raises(UserInputError, match="contains only examples that the ranges"):
        choose_examples(
            task, options(calibration_data=one), id2label={}, known={fingerprint(example)}
        )
