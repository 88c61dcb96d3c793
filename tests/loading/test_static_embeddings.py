"""Static embeddings, compared with sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import sentence_transformers
import tokenizers
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, StaticEmbedding
from tokenizers import models, normalizers, pre_tokenizers, processors

import qdqbert
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.engines.native import open_packed, static
from qdqbert.engines.native.storage import load_packed

pytestmark = pytest.mark.usefixtures("own_cache")

WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "river", "is", "near", "house"),
    *("a", "b", "c", "where", "it", ".", "?"),
]
TEXTS = ["Where is the river?", "It is near the house.", "", "the", "zzz the", "a b c " * 90]
RNG = np.random.default_rng(5)
# Frequent words have small rows.
ROWS = (RNG.normal(size=(len(WORDS), 40)) * RNG.uniform(0.05, 2, size=(len(WORDS), 1))).astype(
    np.float32
)
MAPPING = RNG.integers(0, 6, len(WORDS))
FACTORS = RNG.uniform(0.1, 1, len(WORDS))


def make_tokenizer() -> Any:
    """Return a tokenizer that adds special tokens, which static embeddings leave out."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_padding()
    return made


def save(folder: Path, *modules: Any) -> Path:
    """Write a model as sentence-transformers does."""
    first = StaticEmbedding(make_tokenizer(), embedding_weights=ROWS)
    made = sentence_transformers.SentenceTransformer(modules=[first, *modules], device="cpu")
    made.save_pretrained(str(folder))
    return folder


def save_model2vec(folder: Path, tensors: dict[str, Any], *, normalize: bool = True) -> Path:
    """Write a folder as model2vec does."""
    folder.mkdir()
    arrays = {name: np.ascontiguousarray(each) for name, each in tensors.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    make_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "hidden_dim": 40,
        "seq_length": 1_000_000,
        "normalize": normalize,
    }
    (folder / "config.json").write_text(json.dumps(config))
    package = "sentence_transformers.models"
    modules = [{"idx": 0, "name": "0", "path": ".", "type": f"{package}.StaticEmbedding"}]
    if normalize:
        modules.append(
            {"idx": 1, "name": "1", "path": "1_Normalize", "type": f"{package}.Normalize"}
        )
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


def reference(folder: Path) -> Any:
    made = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return made.encode(TEXTS, show_progress_bar=False)


@pytest.mark.parametrize("modules", [(), (Normalize(),)], ids=["plain", "normalized"])
def test_the_mean_of_rows_is_sentence_transformers(tmp_path, modules) -> None:
    folder = save(tmp_path / "model", *modules)
    wanted = reference(folder)
    np.testing.assert_allclose(
        qdqbert.load(folder, target="float").encode(TEXTS), wanted, atol=1e-6, rtol=1e-5
    )
    model = qdqbert.load(folder)
    found = model.encode(TEXTS)
    # Each row has a scale of its own: as close as 8 bits of a row are.
    assert ((found - wanted) ** 2).sum() < 1e-4 * (wanted**2).sum()
    assert not found[2].any(), "a text without tokens has zeros, as in sentence-transformers"
    assert model.facts == {"pooling": "mean", "normalize": bool(modules), "prompt": ""}
    for text, row in zip(TEXTS, found, strict=True):
        np.testing.assert_array_equal(model.encode(text), row)


@pytest.mark.parametrize(
    "tensors",
    [
        {"embeddings": ROWS},
        {"embeddings": ROWS.astype(np.float64), "weights": FACTORS},
        {"embeddings": ROWS[:6], "mapping": MAPPING, "weights": FACTORS},
        {"embeddings": ROWS[:6].astype(np.float16), "mapping": MAPPING.astype(np.int32)},
        {"embeddings": ROWS[:6], "mapping": MAPPING.astype(np.uint16)},
        {"embeddings": np.rint(ROWS * 30).astype(np.int8)},
    ],
    ids=["rows", "weights", "mapping", "half", "unsigned", "int8"],
)
def test_folders_of_model2vec_are_read(tmp_path, tensors) -> None:
    folder = save_model2vec(tmp_path / "model", tensors)
    rows = tensors["embeddings"].astype(np.float64)[tensors.get("mapping", slice(None))]
    rows = rows * tensors.get("weights", np.ones(len(WORDS)))[:, None]
    tokenizer = make_tokenizer()
    tokenizer.no_padding()
    ids = [tokenizer.encode(each, add_special_tokens=False).ids for each in TEXTS]
    sums = np.stack([rows[each].sum(axis=0) for each in ids])
    wanted = sums / np.maximum(np.linalg.norm(sums, axis=1), 1e-12)[:, None]
    found = qdqbert.load(folder, target="float").encode(TEXTS)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_folder_of_model2vec_needs_no_modules(tmp_path) -> None:
    folder = save_model2vec(tmp_path / "model", {"embeddings": ROWS}, normalize=False)
    wanted = reference(folder)
    (folder / "modules.json").unlink()
    model = qdqbert.load(folder, target="float")
    np.testing.assert_allclose(model.encode(TEXTS), wanted, atol=1e-6, rtol=1e-5)


def test_texts_are_cut_where_the_tokenizer_says_so(tmp_path) -> None:
    folder = save(tmp_path / "model")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 7,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    model = qdqbert.load(folder, target="float")
    np.testing.assert_allclose(model.encode(TEXTS), reference(folder), atol=1e-6, rtol=1e-5)
    assert model.truncated_inputs == 1


def test_long_texts_are_added_in_parts(tmp_path, monkeypatch) -> None:
    folder = save(tmp_path / "model")
    monkeypatch.setattr(static, "_BLOCK", 32)
    found = qdqbert.load(folder, target="float").encode(TEXTS)
    np.testing.assert_allclose(found, reference(folder), atol=1e-6, rtol=1e-5)


def test_others_than_normalize_are_refused(tmp_path) -> None:
    folder = save(tmp_path / "model", Dense(in_features=40, out_features=8))
    with pytest.raises(CheckpointError, match="only Normalize is computed"):
        qdqbert.load(folder)


def test_quantize_says_that_load_runs_it(tmp_path) -> None:
    folder = save(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"`model2vec`. `qdqbert.load` runs them in INT8"):
        qdqbert.quantize(folder, tmp_path / "out")


def test_a_mapping_of_another_type_is_refused(tmp_path) -> None:
    folder = save_model2vec(tmp_path / "model", {"embeddings": ROWS, "mapping": MAPPING > 2})
    with pytest.raises(CheckpointError, match="`mapping` in BOOL, and integers are read"):
        qdqbert.load(folder)


def test_it_has_no_head_of_another_task(tmp_path) -> None:
    folder = save(tmp_path / "model")
    with pytest.raises(UserInputError, match="is a model for 'feature-extraction'"):
        qdqbert.load(folder, task="text-classification")


def test_a_mapping_to_rows_that_are_missing_is_refused(tmp_path) -> None:
    tensors = {"embeddings": ROWS[:3], "mapping": MAPPING + 3}
    folder = save_model2vec(tmp_path / "model", tensors)
    with pytest.raises(CheckpointError, match="`mapping` names rows that `embeddings` lacks"):
        qdqbert.load(folder)


def test_a_damaged_table_is_refused(tmp_path) -> None:
    model = qdqbert.load(save(tmp_path / "model"))
    packed = load_packed(next(model.directory.glob("*.safetensors")))
    runner = open_packed(packed)
    mask = np.ones((1, 1), np.int64)
    with pytest.raises(UserInputError, match="input_ids"):
        runner.run({"input_ids": mask * len(packed.arrays["words"]), "attention_mask": mask})
    for change in (
        {"settings": {**packed.settings, "width": 65}},
        {"settings": {**packed.settings, "normalizes": 1}},
        {"settings": {**packed.settings, "filled_id": 1}},
        {"arrays": {"words": packed.arrays["words"]}},
        {"arrays": {**packed.arrays, "word_scale": packed.arrays["word_scale"] * np.nan}},
        {"arrays": {**packed.arrays, "word_scale": packed.arrays["word_scale"][:2]}},
    ):
        with pytest.raises(CheckpointError, match="damaged"):
            open_packed(static.Packed(**{**vars(packed), **change}))


def test_benchmark_draws_words_of_the_table(tmp_path) -> None:
    # config.json of model2vec does not say how many there are.
    folder = save_model2vec(tmp_path / "model", {"embeddings": ROWS})
    report = qdqbert.benchmark(
        [folder], engines=["native"], batches=[8], sequences=[4], rounds=1, seconds=0.01
    )
    assert [each.name for each in report.timings] == [str(folder), f"{folder} in INT8"]
