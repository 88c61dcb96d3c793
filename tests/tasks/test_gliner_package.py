"""Entities that a call names: against the package gliner, on checkpoints that it saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import qdqbert
from conftest import WORDS, make_config
from gliner_models import as_older_versions, metaspace_tokenizer, save_gliner
from gliner_reference import same
from spm_models import write_spm

gliner = pytest.importorskip("gliner")

pytestmark = pytest.mark.slow

TEXTS = (
    "the house of the cat is in london, and the dog came home last night.",
    "new york-city is 3.5 great; books and music",
    "a",
    "",
    " \n",
    "Straße 東京 naïve (the) [SEP] e-mail_x",
)
LABELS = ("city", "the name of a person", "animal", "城市", "")


def saved(folder: Path, **settings: Any) -> tuple[Any, Path]:
    """Return a model of the package, and the folder that the package saves it to."""
    reference = gliner.GLiNER.from_pretrained(str(save_gliner(folder / "made", **settings)))
    is_safe = bool(settings.get("safetensors"))
    reference.save_pretrained(str(folder / "saved"), safe_serialization=is_safe)
    return reference, folder / "saved"


def check(reference: Any, folder: Path) -> None:
    with qdqbert.load(folder, precision="float") as model:
        count = 0
        for threshold in (0.3, 0.5):
            for flat in (True, False):
                for multi_label in (False, True):
                    options = {"threshold": threshold, "multi_label": multi_label}
                    options["flat_ner"] = flat
                    found = model(TEXTS, LABELS, **options)
                    # Means over the words of a text count padding in the package.
                    wanted = reference.inference(list(TEXTS), list(LABELS), batch_size=1, **options)
                    assert all(map(same, found, wanted))
                    count += sum(map(len, wanted))
                    one = reference.predict_entities(TEXTS[0], list(LABELS), **options)
                    assert same(model(TEXTS[0], LABELS, **options), one)
    assert count


@pytest.mark.parametrize("family", ["deberta-v2", "modernbert", "bert"])
@pytest.mark.parametrize("mode", ["markerV0", "markerV1", "marker", "token_level"])
def test_answers_are_those_of_the_package(family, mode, tmp_path) -> None:
    check(*saved(tmp_path, model_type=family, span_mode=mode))


@pytest.mark.parametrize(
    "settings",
    [
        {"subtoken_pooling": "last"},
        {"subtoken_pooling": "mean"},
        {"subtoken_pooling": "max"},
        {"num_rnn_layers": 0},
        {"num_rnn_layers": 2},
        {"embed_ent_token": False},
        {"width": 32},
        {"safetensors": True},
        {"max_width": 12, "max_len": 384},
    ],
    ids=str,
)
def test_answers_are_those_of_the_package_with_other_settings(settings, tmp_path) -> None:
    check(*saved(tmp_path, **settings))


def test_words_of_sentencepiece_are_those_of_the_package(tmp_path) -> None:
    check(*saved(tmp_path, tokenizer=metaspace_tokenizer()))


@pytest.mark.parametrize("mode", ["markerV0", "token_level"])
def test_older_checkpoints_are_those_of_the_package(mode, tmp_path) -> None:
    # Needs the package sentencepiece, as transformers' tokenizer does.
    config = make_config("deberta-v2", vocab_size=500)
    config.save_pretrained(write_spm(tmp_path / "base"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "base")
    made = {"config": config, "tokenizer": tokenizer, "span_mode": mode, "scale": 30.0}
    folder = save_gliner(tmp_path / "model", **made)
    as_older_versions(folder, tmp_path / "base")
    check(gliner.GLiNER.from_pretrained(str(folder)), folder)


@pytest.mark.parametrize("mode", ["markerV0", "token_level"])
@pytest.mark.filterwarnings("ignore:Resizing embeddings is not supported")
@pytest.mark.parametrize("families", [("deberta-v2", "bert"), ("modernbert", "modernbert")])
def test_labels_of_a_second_encoder_are_those_of_the_package(families, mode, tmp_path) -> None:
    model_type, labels_type = families
    settings = {"labels_type": labels_type, "scale": 6.0, "seed": 2, "span_mode": mode}
    check(*saved(tmp_path, model_type=model_type, **settings))


def test_descriptions_of_labels_are_those_of_the_package(tmp_path) -> None:
    reference, folder = saved(tmp_path)
    labels = {"A": "a city or a town", "B": "the name of an animal"}
    with qdqbert.load(folder, precision="float") as model:
        found = model(TEXTS[0], labels, threshold=0.3)
    assert found
    assert same(found, reference.predict_entities(TEXTS[0], labels, threshold=0.3))


def test_texts_of_more_tokens_than_the_positions_of_deberta_are_read_whole(tmp_path) -> None:
    reference, folder = saved(tmp_path, max_len=384)
    # The config has 64 positions, which limit no text, as all of them are relative.
    text = " ".join(WORDS[:150])
    with qdqbert.load(folder, precision="float") as model:
        found = model(text, LABELS, threshold=0.3)
    assert found
    assert same(found, reference.predict_entities(text, list(LABELS), threshold=0.3))
