"""Models without the tokens that a corpus does not need."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import transformers

import flat
import qdqbert
from conftest import TEXTS
from qdqbert.common.errors import UserInputError
from qdqbert.common.progress import Silent
from qdqbert.pipeline.source import ModelPath, open_source
from qdqbert.pipeline.vocabulary import keep_vocabulary

CORPUS = TEXTS[:6]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(CORPUS) + "\n")
    return path


@pytest.mark.parametrize("family", ["sentence", "roberta", "modernbert"])
def test_the_float_model_computes_the_same_for_the_corpus(
    checkpoints, corpus, tmp_path, family
) -> None:
    whole = open_source(ModelPath(path=str(checkpoints(family)), shown=family), tmp_path, Silent())
    # As in the files of sentence-transformers' models.
    whole.tokenizer.backend_tokenizer.enable_padding(length=30)
    whole.tokenizer.backend_tokenizer.enable_truncation(4)
    kept = keep_vocabulary(whole, str(corpus), (), Silent())
    rows = len(kept.encoder.embeddings.words.rows)
    assert rows == kept.config.vocab_size == kept.tokenizer.backend_tokenizer.get_vocab_size()
    assert rows < len(whole.encoder.embeddings.words.rows) / 3
    found, expected = (each.runner().run(inputs_of(each)) for each in (kept, whole))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def inputs_of(source) -> dict[str, np.ndarray]:
    given = source.tokenizer(CORPUS, padding=True, return_tensors="np")
    return {name: given[name].astype(np.int64) for name in source.input_names}


def test_the_folder_has_the_small_tokenizer_and_table(checkpoints, corpus, tmp_path) -> None:
    checkpoint = checkpoints("sentence")
    options = {"targets": ["native", "onnxruntime"], "calibration_samples": 16, "benchmark": False}
    report = flat.quantize(checkpoint, tmp_path / "small", keep_vocabulary=corpus, **options)
    flat.quantize(checkpoint, tmp_path / "whole", **options)
    kept = next(each for each in report.notices if each.startswith("Kept "))
    assert "6 lines of 'corpus.txt' use, and those that the tokenizer needs. Each line" in kept
    # The built-in sentences of the call are none of the lines.
    assert any("have other tokens than with the whole" in each for each in report.notices)
    small, whole = (qdqbert.load(tmp_path / name) for name in ("small", "whole"))
    vectors = small.encode(CORPUS), whole.encode(CORPUS)
    assert float(np.sum(vectors[0] * vectors[1], axis=1).min()) > 0.99
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    arrays = safetensors.numpy.load_file(tmp_path / "small" / "native" / "model.safetensors")
    assert len(arrays["words"]) == config["vocab_size"] < 300
    # transformers gives the same ids.
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "small" / "tokenizer.json"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    assert len(tokenizer) == config["vocab_size"]
    assert tokenizer.pad_token_id == config["pad_token_id"]
    assert tokenizer(CORPUS[0])["input_ids"] == backend.encode(CORPUS[0]).ids


@pytest.mark.parametrize(("script", "changed"), [("latin", "0 of"), ("greek", "16 of")])
def test_the_report_counts_texts_of_other_scripts(checkpoints, tmp_path, script, changed) -> None:
    report = flat.quantize(
        checkpoints("sentence"),
        tmp_path / "small",
        keep_scripts=[script],
        targets=["native"],
        calibration_data=TEXTS[:16],
        benchmark=False,
    )
    kept, counts = (each for each in report.notices if "tokens" in each)
    assert f"all with characters of {script} or of no script (digits, punctuation), and" in kept
    assert counts.startswith(f"{changed} ")
    settings = json.loads((tmp_path / "small" / "quantization.json").read_text())
    assert f"--keep-scripts {script}" in settings["command"]


def test_a_file_and_scripts_keep_what_either_needs(checkpoints, corpus, tmp_path) -> None:
    path = ModelPath(path=str(checkpoints("sentence")), shown="sentence")
    whole = open_source(path, tmp_path, Silent())
    of_file, of_script, of_both = (
        set(keep_vocabulary(whole, file, scripts, Silent()).tokenizer.get_vocab())
        for file, scripts in ((str(corpus), ()), (None, ("greek",)), (str(corpus), ("greek",)))
    )
    assert of_both == of_file | of_script


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sentence", "", "has no text"),
        ("sentence", "  \n\t\n", "has no text"),
        ("sparse", "the cat", "score each word of their vocabulary"),
    ],
)
def test_what_cannot_be_cut_is_refused(checkpoints, tmp_path, name, text, message) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(text)
    with pytest.raises(UserInputError, match=f"`keep_vocabulary.*{message}"):
        flat.quantize(checkpoints(name), tmp_path / "int8", keep_vocabulary=path)
    assert not (tmp_path / "int8").exists()


def test_a_missing_file_is_named_before_the_model_is_read(tmp_path) -> None:
    with pytest.raises(UserInputError, match=r"`keep_vocabulary='no\.txt'` is not a file"):
        qdqbert.quantize("no-model", tmp_path / "int8", keep_vocabulary="no.txt")
