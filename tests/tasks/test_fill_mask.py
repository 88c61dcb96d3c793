from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from qdqbert.common.errors import CheckpointError, DataFileError
from qdqbert.data.rows.data import Columns, Example
from qdqbert.data.tokenizing.encoding import Batch, make_batches
from qdqbert.encoders.task_kinds import TaskSettings
from qdqbert.tasks import fill_mask
from qdqbert.tasks.fill_mask import FILL_MASK as TASK
from qdqbert.tasks.fill_mask import mask_tokens
from qdqbert.tasks.task import Features, Outcome
from task_features import features_of

TEXTS = [Example(text=f"the cat {word} on a river at night") for word in ("sat", "was", "came")]
MASK, SPECIAL = 4, np.arange(5)


def encode(tokenizer, examples, **options) -> Features:
    return features_of(TASK, tokenizer, examples, settings=TaskSettings(**options))


def mask(ids, **options):
    chosen = TaskSettings(**options)
    return mask_tokens(ids, special=SPECIAL, mask=MASK, words=np.arange(5, 900), options=chosen)


def test_random_tokens_are_never_special() -> None:
    # With few words, special tokens would be drawn soon.
    for seed in range(50):
        options = TaskSettings(seed=seed, mlm_probability=1.0)
        masked, _ = mask_tokens(
            np.arange(5, 10),
            special=SPECIAL,
            mask=MASK,
            words=np.arange(5, 10),
            options=options,
        )
        assert not np.isin(masked, SPECIAL[:MASK]).any()


def test_the_random_tokens_of_a_text_come_from_the_vocabulary_without_special_tokens(
    tokenizer, monkeypatch
) -> None:
    given = []
    masked = mask_tokens

    def record(ids, **settings):
        given.append(settings["words"])
        return masked(ids, **settings)

    monkeypatch.setattr(fill_mask, "mask_tokens", record)
    encode(tokenizer, TEXTS)
    expected = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
    assert given[0].tolist() == expected


def test_labels_of_a_table_are_not_read(write_file) -> None:
    path = write_file("reviews.csv", "text,label\na b,\nc d,x\n")
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    TASK.check_labels(dataset, {})
    assert [example.text for example in dataset.examples] == ["a b", "c d"]
    assert TASK.class_names is None


def test_places_hold_what_was_masked(tokenizer) -> None:
    made = encode(tokenizer, TEXTS, mlm_probability=0.5)
    for example, inputs, (positions, ids) in zip(
        TEXTS, made.encoded.inputs, made.places, strict=True
    ):
        restored = inputs["input_ids"].copy()
        restored[positions] = ids
        assert restored.tolist() == tokenizer(example.text)["input_ids"]
        assert (positions.dtype, ids.dtype) == (np.int32, np.int32)
        assert not set(ids.tolist()) & set(tokenizer.all_special_ids)
    assert [inputs["attention_mask"].all() for inputs in made.encoded.inputs] == [True] * 3


def test_masks_of_a_text_do_not_depend_on_its_neighbours(tokenizer) -> None:
    together = encode(tokenizer, TEXTS)
    alone = encode(tokenizer, TEXTS[2:])
    np.testing.assert_equal(together.encoded.inputs[2], alone.encoded.inputs[0])
    np.testing.assert_equal(together.places[2], alone.places[0])


def test_masks_depend_on_the_seed(tokenizer) -> None:
    first, again, other = (
        [place[0].tolist() for place in encode(tokenizer, TEXTS, seed=seed).places]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_tokens_are_masked_in_the_proportions_of_bert() -> None:
    ids = np.random.default_rng(0).integers(5, 900, 100_000).astype(np.int32)
    masked, (positions, true) = mask(ids)
    now = masked[positions]
    # Three standard deviations of 15,000 draws are 1 % of them.
    assert len(positions) / len(ids) == pytest.approx(0.15, abs=0.004)
    assert (now == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (now == true).mean() == pytest.approx(0.1, abs=0.01)
    untouched = np.delete(np.arange(len(ids)), positions)
    assert (masked[untouched] == ids[untouched]).all()


def test_at_least_one_token_is_masked() -> None:
    ids = np.array([2, 77, 3], np.int32)
    _, (positions, true) = mask(ids, mlm_probability=1e-9)
    assert (positions.tolist(), true.tolist()) == ([1], [77])


def test_the_given_ids_are_not_changed() -> None:
    ids = np.arange(5, 50, dtype=np.int32)
    mask(ids, mlm_probability=0.9)
    assert ids.tolist() == list(range(5, 50))


def test_text_without_a_known_token_is_left_out(tokenizer) -> None:
    made = encode(tokenizer, [Example(text="\u2603"), TEXTS[0]])
    assert made.examples == (TEXTS[0],)
    assert len(made.encoded.inputs) == len(made.places) == 1
    assert made.notices == ("Left out 1 of 2 texts: without a token to mask.",)
    with pytest.raises(DataFileError, match="No text can be used: 1 text without a token to mask"):
        encode(tokenizer, [Example(text="\u2603")])


def test_tokenizer_without_a_mask_token_is_refused(tokenizer) -> None:
    nameless = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(CheckpointError, match="has no mask token"):
        encode(nameless, TEXTS)


def test_predictions_are_of_masked_positions_in_the_order_of_the_batch(tokenizer) -> None:
    made = encode(tokenizer, [*TEXTS, Example(text="home")], mlm_probability=0.4)
    (batch,) = make_batches(made.encoded, batch_size=4)
    logits = np.zeros((*batch.inputs["input_ids"].shape, len(tokenizer)), np.float32)
    for place, index in enumerate(batch.indices):
        positions, ids = made.places[index]
        # Practically certain.
        logits[place, positions, ids] = 50
    predictions = TASK.predictions(made.results(batch, {"logits": logits}))
    for prediction, index in zip(predictions, batch.indices, strict=True):
        assert prediction[:, 1].tolist() == made.places[index][1].tolist()
        # The tolerance is above 1000 exp(-50), the share of all other tokens.
        assert prediction[:, 0] == pytest.approx(0, abs=1e-6)
    ordered = [predictions[batch.indices.index(index)] for index in range(4)]
    perplexity, accuracy = TASK.metrics(Outcome(ordered, made))
    assert perplexity.value == pytest.approx(1, abs=1e-6)
    assert accuracy.value == 100
    assert TASK.decisions(Outcome(ordered, made)) == [tuple(ids.tolist()) for _, ids in made.places]


def test_predictions_of_a_later_batch_use_its_own_places(tokenizer) -> None:
    made = encode(tokenizer, TEXTS)
    batch = Batch(indices=(2,), inputs={})
    logits = np.zeros((1, 64, len(tokenizer)), np.float32)
    (prediction,) = TASK.predictions(made.results(batch, {"logits": logits}))
    assert prediction[:, 0] == pytest.approx(-np.log(len(tokenizer)))


def test_labels_are_minus_100_except_where_masked(tokenizer) -> None:
    made = encode(tokenizer, TEXTS[:1], mlm_probability=0.5)
    (labels,) = TASK.labels(made, {})
    ((positions, ids),) = made.places
    wanted = labels["labels"]
    assert wanted.dtype == np.int64
    assert wanted[positions].tolist() == ids.tolist()
    assert set(np.delete(wanted, positions).tolist()) == {-100}
