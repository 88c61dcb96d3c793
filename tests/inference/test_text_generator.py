"""Continued texts, compared with transformers' pipeline."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import transformers

import qdqbert
from qdqbert.errors import UserInputError

TEXTS = ["the cat sat", "music", "in the night and the dog " * 3]


@pytest.fixture(scope="module")
def both(tiny_artifact, checkpoints):
    """The loaded folder, and transformers' pipeline on its checkpoint."""
    # Without ids that have no text.
    size = len(transformers.AutoTokenizer.from_pretrained(checkpoints("bert")))
    checkpoint, folder = tiny_artifact(
        "AutoModelForCausalLM", is_decoder=True, vocab_size=size, eos_token_id=3
    )
    pipeline = transformers.pipeline("text-generation", model=str(checkpoint))
    with qdqbert.load(folder) as model:
        yield model, pipeline


@pytest.mark.parametrize("options", [{}, {"return_full_text": False}])
def test_texts_are_those_of_the_pipeline(both, options) -> None:
    model, pipeline = both
    for inputs in (TEXTS, TEXTS[0], TEXTS[:1]):
        expected = pipeline(inputs, do_sample=False, max_new_tokens=9, **options)
        assert model(inputs, max_new_tokens=9, **options) == expected
    assert model([]) == []


def test_an_end_token_ends_a_text(both) -> None:
    model, pipeline = both
    options = {"max_new_tokens": 9, "return_full_text": False}
    ids = pipeline(TEXTS[0], do_sample=False, max_new_tokens=9, return_tensors=True)
    end = ids[0]["generated_token_ids"][-5]
    generation = model.job(**options)
    assert generation.stops == {3}
    for stops in ({end}, {end, 3}):
        job = dataclasses.replace(generation, stops=frozenset(stops))
        expected = pipeline(TEXTS, do_sample=False, eos_token_id=list(stops), **options)
        assert list(model.stream(job, TEXTS)) == expected
        assert all(each[0]["generated_text"] for each in expected)


def test_end_tokens_are_those_of_the_generation_config(both, tmp_path) -> None:
    model, _ = both
    source = model._loaded.artifact.directory
    stored = json.loads((source / "generation_config.json").read_text())
    assert stored["eos_token_id"] == 3
    folder = shutil.copytree(source, tmp_path / "int8")
    for ends, expected in (([4, 5], {4, 5}), (None, {3})):
        text = json.dumps({**stored, "eos_token_id": ends})
        (folder / "generation_config.json").write_text(text)
        with qdqbert.load(folder) as changed:
            assert changed.job().stops == expected


def test_a_text_ends_at_the_longest_input(both, caplog) -> None:
    model, _ = both
    long = "the dog " * 40
    done = []
    answers = list(model.stream(model.job(), [TEXTS[1], long], advance=done.append))
    assert answers[1] == [{"generated_text": long}]
    assert sum(each.items for each in done) == 2
    assert sum(each.truncated for each in done) == 1
    assert answers[0] == model(TEXTS[1])


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([3], {}, "`inputs` has to be a text or a list of texts"),
        ("a", {"max_new_tokens": 0}, "`max_new_tokens` must be at least 1, got 0"),
    ],
)
def test_unusable_arguments_are_refused(both, inputs, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        both[0](inputs, **options)


def test_run_writes_texts(both, tmp_path) -> None:
    model, _ = both
    data = tmp_path / "in.txt"
    data.write_text("\n".join(["", *TEXTS]))
    report = qdqbert.run(
        model._loaded.artifact.directory,
        data,
        tmp_path / "a.jsonl",
        engine=model.engine,
        max_new_tokens=3,
        on_error="skip",
    )
    assert (report.rows, report.skipped) == (len(TEXTS), 1)
    found = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    expected = [each[0] for each in model([row["text"] for row in found], max_new_tokens=3)]
    assert [{"generated_text": row["generated_text"]} for row in found] == expected
