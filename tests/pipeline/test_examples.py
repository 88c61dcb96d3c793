"""The choice of calibration and held-out examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.common.options.limits import Limits
from qdqbert.data import texts as resources
from qdqbert.data.rows.data import Columns, fingerprint
from qdqbert.pipeline.examples import ChosenExamples, Data, choose_examples
from qdqbert.tasks.registry import TASKS
from qdqbert.verbs.quantize.options import QuantizeOptions

TASK = TASKS["text-classification"]


@pytest.fixture
def data(write_file) -> Path:
    return write_file("texts.txt", "\n".join(f"text number {index}" for index in range(60)))


# What is said of examples for one of the two, which the model may know.
MAYBE_TRAINED = (
    "INT8 is compared with float on rows of `calibration_data` that the model may have been "
    "trained on. It is surer of those than of new ones, so pass others as `eval_data`."
)


def choose(task=TASK, *, labels=None, known=None, trained=(), **data) -> ChosenExamples:
    paths = {name: str(path) for name, path in data.items() if name.endswith("_data")}
    return choose_examples(Data(**{**data, **paths}), task, labels or {}, known, trained)


def test_calibration_and_held_out_examples_are_drawn_by_the_seed(data) -> None:
    chosen, again, other = (
        choose(calibration_data=data, samples=24, seed=seed) for seed in (0, 0, 1)
    )
    assert (len(chosen.calibration), len(chosen.heldout)) == (24, 36)
    assert not set(chosen.calibration) & set(chosen.heldout)
    assert chosen == again
    assert chosen.calibration != other.calibration
    assert chosen.notices == (MAYBE_TRAINED,)


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
    chosen = choose(calibration_data=data, samples=samples)
    assert (len(chosen.calibration), len(chosen.heldout)) == split
    assert not set(chosen.calibration) & set(chosen.heldout)
    assert all(example.text.startswith("text number") for example in chosen.heldout)
    notice = (
        "Calibrated on 48 examples of `calibration_data`. 12 others are held out, and INT8 is "
        "compared with float on them."
    )
    assert chosen.notices == (*([notice] if samples > 48 else []), MAYBE_TRAINED)


def test_nothing_is_held_out_of_data_next_to_labeled_ones(data, write_file) -> None:
    labeled = write_file("dev.csv", "text,label\na,0\nb,1\n")
    chosen = choose(calibration_data=data, eval_data=labeled, labels={0: "no", 1: "yes"})
    assert (len(chosen.calibration), len(chosen.heldout)) == (60, 2)
    assert "Calibrated on 60 examples, as the data has no more." in chosen.notices


@pytest.mark.parametrize(("count", "own"), [(7, 0), (8, 4), (19, 4), (20, 4), (25, 5)])
def test_built_in_sentences_replace_too_few_examples(write_file, count, own) -> None:
    few = write_file("few.txt", "\n".join(f"text number {index}" for index in range(count)))
    chosen = choose(calibration_data=few)
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
    chosen = choose(calibration_data=twice)
    used = {fingerprint(example) for example in chosen.calibration}
    assert not used & {fingerprint(example) for example in chosen.heldout}
    same = write_file("same.txt", "the same text\n" * 60)
    chosen = choose(calibration_data=same)
    assert chosen.heldout == tuple(resources.heldout_examples())


@pytest.mark.parametrize(("count", "held"), [(2, 1), (6, 3), (30, 6)])
def test_tasks_without_built_in_sentences_hold_out_of_any_number(write_file, count, held) -> None:
    sentences = "\n\n".join(f"the O\ncat{index} B-ANIMAL" for index in range(count))
    path = write_file("a.conll", sentences)
    chosen = choose(TASKS["token-classification"], calibration_data=path)
    assert (len(chosen.calibration), len(chosen.heldout)) == (count - held, held)


def test_labels_in_a_layout_without_columns_are_reported_if_they_cannot_be_used(
    write_file,
) -> None:
    path = write_file("a.conll", "\n\n".join(f"the O\ncat{index} B-ORG" for index in range(30)))
    task, labels = TASKS["token-classification"], {0: "O", 1: "B-PER"}
    chosen = choose(task, calibration_data=path, labels=labels)
    assert any("No metrics are computed: " in each and "B-ORG" in each for each in chosen.notices)
    with pytest.raises(UserInputError, match="B-ORG"):
        choose(task, calibration_data=path, labels=labels, limits=Limits(max_drop=1))


def test_examples_that_stored_ranges_were_taken_from_are_left_out(data) -> None:
    first = choose(calibration_data=data, samples=24)
    known = {fingerprint(example) for example in first.calibration}
    chosen = choose(calibration_data=data, known=known)
    assert chosen.calibration == ()
    assert set(chosen.heldout) == set(first.heldout)


def test_built_in_sentences_replace_missing_data() -> None:
    chosen = choose()
    assert set(chosen.calibration) <= set(resources.calibration_examples())
    assert chosen.heldout == tuple(resources.heldout_examples())
    with_ranges = choose(known=())
    assert "Fidelity is measured on built-in sentences" in with_ranges.notices[0]


def test_whether_texts_are_pairs_is_known_from_data_of_the_user(write_file, data) -> None:
    rows = "\n".join(f"text {index}\tother text {index}\tPositive" for index in range(60))
    pairs = write_file("pairs.tsv", f"text\ttext_pair\tlabel\n{rows}")

    def takes_pairs(known=None, **changes):
        labels = {0: "Negative", 1: "Positive"}
        return choose(**changes, labels=labels, known=known).takes_pairs

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
        choose(task)
    assert caught.value.argument == "calibration_data"
    one = write_file("one.conll", "the O\ncat B-ANIMAL\n")
    with pytest.raises(UserInputError, match=r"All 1 examples .* are used to calibrate"):
        choose(task, calibration_data=one)
    (example,) = task.read(str(one), columns=Columns(), max_examples=None).examples
    with pytest.raises(UserInputError, match="contains only examples that the ranges"):
        choose(task, calibration_data=one, known={fingerprint(example)})


LABELS = {0: "no", 1: "yes"}


def labeled_rows(count: int, label="{0}") -> str:
    rows = (f"text number {index},{label.format(index % 2)}" for index in range(count))
    return "\n".join(["text,label", *rows])


def test_labeled_calibration_data_are_split_and_the_rest_is_evaluated(write_file) -> None:
    path = write_file("train.csv", labeled_rows(60))
    chosen = choose(calibration_data=path, samples=20, labels=LABELS)
    assert (len(chosen.calibration), len(chosen.heldout)) == (20, 40)
    assert not set(chosen.calibration) & set(chosen.heldout)
    assert chosen.labeled_data == str(path)
    assert chosen.is_split
    assert chosen.notices[-2:] == (
        "`calibration_data` was split by the seed: 20 examples were calibrated on, and metrics are "
        "of 40 others.",
        MAYBE_TRAINED,
    )


def test_at_most_a_thousand_labeled_examples_are_held_out(write_file) -> None:
    path = write_file("train.csv", labeled_rows(1500))
    chosen = choose(calibration_data=path, labels=LABELS)
    assert (len(chosen.calibration), len(chosen.heldout)) == (300, 1000)
    assert "metrics are of 1,000 of 1,200 others" in chosen.notices[-2]


def test_examples_without_a_label_do_not_keep_the_others_from_being_scored(write_file) -> None:
    rows = labeled_rows(60).splitlines()
    blank = [
        f"{row.rpartition(',')[0]}," if index % 10 == 3 else row for index, row in enumerate(rows)
    ]
    path = write_file("train.csv", "\n".join(blank))
    for data in ({"calibration_data": path}, {"eval_data": path}):
        chosen = choose(**data, samples=24, labels=LABELS)
        assert chosen.labeled_data == str(path)
        assert len(chosen.heldout) == 30
        assert "6 of 60 examples have no label and are left out." in chosen.notices


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        # 736 examples show half a point if none changes.
        (Limits(max_drop=0.5), 4 * 736),
        (Limits(max_flips=1), 4 * 368),
        (Limits(max_flips=20), 1000),
        (Limits(min_sqnr=20), 1000),
    ],
)
def test_more_examples_are_held_out_for_limits_that_need_them(write_file, limits, count) -> None:
    path = write_file("train.csv", labeled_rows(3500))
    chosen = choose(calibration_data=path, labels=LABELS, limits=limits)
    assert (len(chosen.calibration), len(chosen.heldout)) == (300, count)


def test_labels_of_calibration_data_that_cannot_be_scored_are_named_in_a_note(write_file) -> None:
    path = write_file("train.csv", labeled_rows(60, "maybe"))
    chosen = choose(calibration_data=path, labels=LABELS)
    assert chosen.labeled_data is None
    assert any(each.startswith("No metrics are computed: ") for each in chosen.notices)
    for needed in ({"columns": Columns(label="label")}, {"limits": Limits(max_drop=1.0)}):
        with pytest.raises(UserInputError, match="maybe"):
            choose(calibration_data=path, **needed, labels=LABELS)


def test_a_limit_on_metrics_needs_labels(data) -> None:
    with pytest.raises(UserInputError, match="no column has a name that is known to hold labels"):
        choose(calibration_data=data, limits=Limits(max_drop=1.0), labels=LABELS)
    with pytest.raises(UserInputError, match="`max_drop=1` compares metrics, which need labels"):
        QuantizeOptions(model="m", limits=Limits(max_drop=1.0))


def test_evaluation_data_alone_are_split_too(write_file) -> None:
    path = write_file("dev.csv", labeled_rows(40))
    chosen = choose(eval_data=path, samples=12, labels=LABELS)
    assert (len(chosen.calibration), len(chosen.heldout)) == (12, 28)
    assert not set(chosen.calibration) & set(chosen.heldout)
    assert chosen.labeled_data == str(path)
    assert not chosen.is_split
    assert "`eval_data` was split by the seed: 12 examples" in chosen.notices[-1]
    assert chosen == choose(eval_data=path, samples=12, labels=LABELS)
    half = choose(eval_data=path, labels=LABELS)
    assert (len(half.calibration), len(half.heldout)) == (20, 20)


def test_few_evaluation_data_are_not_calibrated_on(write_file) -> None:
    path = write_file("dev.csv", labeled_rows(6))
    chosen = choose(eval_data=path, labels=LABELS)
    assert set(chosen.calibration) <= set(resources.calibration_examples())
    assert len(chosen.heldout) == 6
    assert "built-in English sentences are used" in chosen.notices[-1]


def test_the_documents_of_a_query_are_on_one_side(write_file) -> None:
    rows = [f"query {index // 4}\tdocument {index}\t{index % 2}" for index in range(80)]
    path = write_file("ranking.tsv", "\n".join(["query\tdocument\tlabel", *rows]))
    chosen = choose(
        TASKS["reranking"],
        calibration_data=path,
        samples=30,
        columns=Columns(text="query", text_pair="document"),
        labels={0: "LABEL_0"},
    )
    assert chosen.labeled_data == str(path)
    used, held = ({each.group for each in side} for side in (chosen.calibration, chosen.heldout))
    assert len(chosen.calibration) == 30
    assert len(chosen.heldout) % 4 == 0
    assert not used & held


def fingerprints(path: Path, count: int, task=TASK) -> set[str]:
    """Those of the first examples of a file."""
    examples = task.read(str(path), columns=Columns(), max_examples=count).examples
    return {fingerprint(each) for each in examples}


def test_examples_that_were_trained_on_are_calibrated_on_and_not_held_out(write_file) -> None:
    path = write_file("train.csv", labeled_rows(60))
    trained = fingerprints(path, 30)
    chosen = choose(calibration_data=path, samples=20, labels=LABELS, trained=trained)
    assert len(chosen.calibration) == 20
    assert {fingerprint(each) for each in chosen.calibration} <= trained
    assert len(chosen.heldout) == 30
    assert not {fingerprint(each) for each in chosen.heldout} & trained
    notice = "10 examples of `calibration_data` are left out: the model was trained on them."
    assert chosen.notices[-1] == notice


def test_examples_to_evaluate_on_that_were_trained_on_are_left_out(write_file) -> None:
    path = write_file("dev.csv", labeled_rows(40))
    data = write_file("other.txt", "\n".join(f"another text {index}" for index in range(30)))
    trained = fingerprints(path, 30)
    options = {"labels": LABELS, "trained": trained, "eval_data": path}
    for others in ({}, {"calibration_data": data}, {"known": ()}):
        chosen = choose(**options, **others)
        assert len(chosen.heldout) == 10
        assert not {fingerprint(each) for each in chosen.heldout} & trained
        notice = "examples of `eval_data` are left out: the model was trained on them."
        assert any(notice in each for each in chosen.notices)


@pytest.mark.parametrize("others", [{"known": ()}, {}], ids=["stored", "calibrated"])
def test_data_that_were_all_trained_on_are_refused(write_file, others) -> None:
    path = write_file("dev.csv", labeled_rows(40))
    trained = fingerprints(path, 40)
    with pytest.raises(UserInputError, match="or that the model was trained on") as caught:
        choose(eval_data=path, labels=LABELS, trained=trained, **others)
    assert caught.value.argument == "eval_data"
    task = TASKS["token-classification"]
    tags = write_file("a.conll", "\n\n".join(f"the O\ncat{index} B-ANIMAL" for index in range(9)))
    with pytest.raises(UserInputError, match="only examples that the model was trained on"):
        choose(task, calibration_data=tags, trained=fingerprints(tags, 9, task), **others)
    # Built-in sentences replace texts.
    chosen = choose(calibration_data=path, labels=LABELS, trained=trained, **others)
    assert chosen.heldout == tuple(resources.heldout_examples())
    assert chosen.labeled_data is None


def test_a_query_with_a_document_that_was_trained_on_is_left_out(write_file) -> None:
    rows = [f"query {index // 4}\tdocument {index}\t{index % 2}" for index in range(80)]
    path = write_file("ranking.tsv", "\n".join(["query\tdocument\tlabel", *rows]))
    task = TASKS["reranking"]
    columns = Columns(text="query", text_pair="document")
    first = task.read(str(path), columns=columns, max_examples=1).examples[0]
    chosen = choose(
        task,
        eval_data=path,
        columns=columns,
        labels={0: "LABEL_0"},
        known=(),
        trained={fingerprint(first)},
    )
    assert len(chosen.heldout) == 76
    assert first.group not in {each.group for each in chosen.heldout}


def test_notices_name_the_parameter_of_the_call(write_file) -> None:
    path = write_file("dev.csv", labeled_rows(40))
    data = write_file("other.txt", "\n".join(f"another text {index}" for index in range(30)))
    trained = fingerprints(path, 30)
    chosen = choose(
        eval_data=path, calibration_data=data, labels=LABELS, trained=trained, eval_name="data"
    )
    assert any("30 examples of `data` are left out" in each for each in chosen.notices)
    with pytest.raises(UserInputError, match="`data=") as caught:
        choose(eval_data=path, labels=LABELS, trained=fingerprints(path, 40), eval_name="data")
    assert caught.value.argument == "data"
