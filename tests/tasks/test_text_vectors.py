"""BGE-M3: embedding, weights of words and vectors of tokens, compared with FlagEmbedding's code."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from starlette.testclient import TestClient

import flat
import qdqbert
from conftest import SIZES, add_sentence_files, make_texts, save_checkpoint
from hub_server import Repository, running_hub
from python_process import run_python
from qdqbert.common.errors import CheckpointError, UserInputError
from qdqbert.serving.app import build_app
from qdqbert.tasks.text_vectors import largest_of_words
from serving_requests import answer, post

HIDDEN, WIDTH, LIMIT = 32, 24, 48
CLS = {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": True}
TEXTS = [
    "the cat sat on the book and the cat",
    "music",
    "",
    "☃ <mask> <unk> </s> snow",
    "in the night and the dog " * 20,
    "a book of rain",
]
EVERY: dict[str, Any] = {"return_dense": True, "return_sparse": True, "return_colbert_vecs": True}


def save_bge_m3(folder, save_tiny, *, modules: bool = True):
    """Save an encoder with the layers of BGE-M3, some in float16, as FlagEmbedding does."""
    save_tiny(folder, "xlm-roberta", num_hidden_layers=2)
    if modules:
        add_sentence_files(folder, CLS, max_seq_length=LIMIT)
    torch.manual_seed(1)
    torch.save(torch.nn.Linear(HIDDEN, 1).state_dict(), folder / "sparse_linear.pt")
    torch.save(torch.nn.Linear(HIDDEN, WIDTH).half().state_dict(), folder / "colbert_linear.pt")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, save_tiny):
    return save_bge_m3(tmp_path_factory.mktemp("bge") / "m3", save_tiny)


@pytest.fixture(scope="module")
def in_float(checkpoint):
    with qdqbert.load(checkpoint, target="float") as model:
        yield model


@pytest.fixture(scope="module")
def in_int8(checkpoint):
    with qdqbert.load(checkpoint, engine="native") as model:
        yield model


def largest(tokenizer: Any, ids: list[int], weights: list[float]) -> dict[str, float]:
    """Return the largest weight of each id, as FlagEmbedding and gte-multilingual-base do."""
    roles = ("cls_token", "sep_token", "pad_token", "unk_token")
    unused = {getattr(tokenizer, f"{role}_id") for role in roles}
    words: dict[str, float] = {}
    for index, weight in zip(ids, weights, strict=True):
        if index not in unused and weight > words.get(str(index), 0):
            words[str(index)] = weight
    return words


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """`M3Embedder` of FlagEmbedding, without its batches."""

    checkpoint: Any
    limit: int = LIMIT
    truncate_dim: int | None = None

    def encode(self, text: str) -> dict[str, Any]:
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.checkpoint)
        model = transformers.AutoModel.from_pretrained(self.checkpoint).eval()
        layers = {
            name: torch.load(self.checkpoint / f"{name}_linear.pt")
            for name in ("sparse", "colbert")
        }
        inputs = tokenizer(text, truncation=True, max_length=self.limit, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
            weights, vectors = (
                torch.nn.functional.linear(states, each["weight"].float(), each["bias"].float())
                for each in layers.values()
            )
        weights = torch.relu(weights)[0, :, 0].tolist()
        dense, vectors = states[0, 0, : self.truncate_dim], vectors[0, 1:, : self.truncate_dim]
        return {
            "dense_vecs": torch.nn.functional.normalize(dense, dim=-1).numpy(),
            "lexical_weights": largest(tokenizer, inputs["input_ids"][0].tolist(), weights),
            "colbert_vecs": torch.nn.functional.normalize(vectors, dim=-1).numpy(),
        }


def check_close(found, expected, atol: float = 1e-4) -> None:
    """Check one result of all kinds."""
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(found["dense_vecs"], expected["dense_vecs"], atol=atol)
    assert found["lexical_weights"] == pytest.approx(expected["lexical_weights"], abs=atol)
    assert found["colbert_vecs"].shape == expected["colbert_vecs"].shape
    np.testing.assert_allclose(found["colbert_vecs"], expected["colbert_vecs"], atol=atol)


def of_text(found, index):
    return {name: each[index] for name, each in found.items()}


def test_float_is_as_flag_embedding(checkpoint, in_float) -> None:
    reference = Reference(checkpoint=checkpoint)
    found = in_float.encode(TEXTS, **EVERY)
    assert found["dense_vecs"].shape == (len(TEXTS), HIDDEN)
    for index, text in enumerate(TEXTS):
        expected = reference.encode(text)
        check_close(of_text(found, index), expected)
        check_close(in_float.encode(text, **EVERY), expected)


def test_int8_is_close_to_float(in_float, in_int8) -> None:
    found, expected = (model.encode(TEXTS, **EVERY) for model in (in_int8, in_float))
    for index in range(len(TEXTS)):
        check_close(of_text(found, index), of_text(expected, index), atol=0.05)
    dense, tokens = found["dense_vecs"], np.concatenate(found["colbert_vecs"])
    assert (dense * expected["dense_vecs"]).sum(axis=1).min() > 0.99
    assert (tokens * np.concatenate(expected["colbert_vecs"])).sum(axis=1).min() > 0.99


def test_a_text_has_the_same_bits_alone_and_with_others(in_int8) -> None:
    together = in_int8.encode(TEXTS, **EVERY)
    for index, text in enumerate(TEXTS):
        alone = in_int8.encode([text], **EVERY)
        np.testing.assert_array_equal(alone["dense_vecs"][0], together["dense_vecs"][index])
        np.testing.assert_array_equal(alone["colbert_vecs"][0], together["colbert_vecs"][index])
        assert alone["lexical_weights"][0] == together["lexical_weights"][index]
    # Nor do they depend on what else is asked for.
    np.testing.assert_array_equal(in_int8.encode(TEXTS), together["dense_vecs"])
    sparse = in_int8.encode(TEXTS, return_dense=False, return_sparse=True)
    assert sparse["lexical_weights"] == together["lexical_weights"]


def test_a_word_has_its_largest_weight_and_special_tokens_have_none() -> None:
    ids = np.array([0, 9, 5, 9, 3, 7, 5, 2])
    weights = np.array([4, 1, 2, 3, 8, 0, 0.5, 9], np.float32)
    found = largest_of_words(ids, weights, np.array([0, 1, 2, 3]))
    assert found.indices.tolist() == [5, 9]
    assert found.values.tolist() == [2, 3]


def test_special_tokens_have_no_weight(checkpoint, in_float) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    text = "<s> <pad> </s> <unk> ☃ the"
    (found,) = in_float.encode([text], return_sparse=True)["lexical_weights"]
    assert found.keys() <= {str(tokenizer.convert_tokens_to_ids("the"))}


def test_what_is_not_asked_for_is_none(in_float) -> None:
    found = in_float.encode("music", return_dense=True)
    assert (found["lexical_weights"], found["colbert_vecs"]) == (None, None)
    np.testing.assert_array_equal(found["dense_vecs"], in_float.encode("music"))
    found = in_float.encode(["music"], return_dense=False, return_colbert_vecs=True)
    assert (found["dense_vecs"], found["lexical_weights"]) == (None, None)
    assert in_float.encode([], **EVERY)["dense_vecs"].shape == (0, HIDDEN)
    assert in_float.encode([], **EVERY)["lexical_weights"] == []
    assert isinstance(in_float.encode(TEXTS), np.ndarray)


def test_embeddings_and_vectors_are_cut_before_they_are_scaled(checkpoint, in_float) -> None:
    found = in_float.encode(TEXTS[0], truncate_dim=8, **EVERY)
    check_close(found, Reference(checkpoint=checkpoint, truncate_dim=8).encode(TEXTS[0]))


def test_texts_are_cut_to_a_shorter_length(checkpoint, in_float) -> None:
    found = in_float.encode(TEXTS[4], max_length=12, **EVERY)
    check_close(found, Reference(checkpoint=checkpoint, limit=12).encode(TEXTS[4]))
    assert len(found["colbert_vecs"]) == 11


def test_results_can_be_tensors(in_float) -> None:
    found = in_float.encode(TEXTS, convert_to_tensor=True, **EVERY)
    assert isinstance(found["dense_vecs"], torch.Tensor)
    assert all(isinstance(each, torch.Tensor) for each in found["colbert_vecs"])


def test_fine_tuned_models_of_flag_embedding_have_no_modules(tmp_path, save_tiny) -> None:
    folder = save_bge_m3(tmp_path / "m3", save_tiny, modules=False)
    reference = Reference(checkpoint=folder)
    with qdqbert.load(folder, target="float") as model:
        for text in TEXTS[:4]:
            check_close(model.encode(text, **EVERY), reference.encode(text))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"return_dense": False}, "`return_dense=False` leaves nothing to return"),
        ({"return_sparse": True, "chunk_overlap": 4}, "`chunk_overlap=4` joins the embeddings"),
        ({"return_sparse": True, "output_value": "token_embeddings"}, "`vectors=('dense', 's"),
        ({"return_sparse": True, "max_length": 1}, "`max_length` must be above 4"),
    ],
)
def test_options_without_a_meaning_are_refused(in_float, options, reason) -> None:
    with pytest.raises(UserInputError) as error:
        in_float.encode(TEXTS, **options)
    assert reason in str(error.value)


def test_other_embedders_make_no_such_vectors(checkpoints) -> None:
    with qdqbert.load(checkpoints("sentence"), target="float") as model:
        with pytest.raises(UserInputError, match="makes no sparse vectors of a text, only 'dense'"):
            model.encode(TEXTS, return_sparse=True)
        assert model.encode(TEXTS, return_dense=True)["colbert_vecs"] is None


@pytest.mark.parametrize(
    ("name", "layer", "reason"),
    [
        ("sparse_linear.pt", torch.nn.Linear(HIDDEN, 2), "expected (1, hidden) and (1,)"),
        ("colbert_linear.pt", torch.nn.Linear(16, HIDDEN), "vectors of 16 channels, and gets 32"),
    ],
)
def test_layers_of_other_shapes_are_refused(checkpoint, tmp_path, name, layer, reason) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "m3")
    torch.save(layer.state_dict(), folder / name)
    with pytest.raises(CheckpointError) as error:
        qdqbert.load(folder, target="float")
    assert reason in str(error.value)


def test_other_layers_make_another_folder_of_the_cache(checkpoint, in_float, tmp_path) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "m3")
    torch.save(torch.nn.Linear(HIDDEN, 1).state_dict(), folder / "sparse_linear.pt")
    with qdqbert.load(folder, target="float") as model:
        found = model.encode(TEXTS[0], return_sparse=True)
        check_close(model.encode(TEXTS[0], **EVERY), Reference(checkpoint=folder).encode(TEXTS[0]))
    assert found["lexical_weights"] != in_float.encode(TEXTS[0], **EVERY)["lexical_weights"]


def test_layers_are_downloaded_from_the_hub(checkpoint, tmp_path) -> None:
    code = "import qdqbert; print(qdqbert.load('someone/m3', check=False).vector_kinds)"
    with running_hub() as hub:
        hub.repositories["someone/m3"] = Repository.of_folder(checkpoint)
        found = run_python("-c", code, env=hub.environment(tmp_path / "home"))
    assert found == "('dense', 'sparse', 'colbert')"


def test_classifiers_of_tokens_weigh_words_of_embedders(tmp_path) -> None:
    """As in gte-multilingual-base, and with other classes of tokens in none."""
    family = {"max_position_embeddings": 64, "pad_token_id": 1, "type_vocab_size": 1}
    for outputs, kinds in ((1, ("dense", "sparse")), (2, ("dense",))):
        folder = tmp_path / str(outputs)
        config = transformers.AutoConfig.for_model("gte", **SIZES, **family, num_labels=outputs)
        save_checkpoint(folder, transformers.AutoModelForTokenClassification, config)
        add_sentence_files(folder, CLS, max_seq_length=LIMIT)
        path = folder / "config.json"
        named = {"architectures": ["GteModel", "GteForTokenClassification"]}
        path.write_text(json.dumps({**json.loads(path.read_text()), **named}))
        with qdqbert.load(folder, target="float") as model:
            assert model.vector_kinds == kinds
            if outputs > 1:
                continue
            found = model.encode(TEXTS, return_sparse=True)["lexical_weights"]
        reference = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        for text, weights in zip(TEXTS, found, strict=True):
            inputs = tokenizer(text, truncation=True, max_length=LIMIT, return_tensors="pt")
            with torch.no_grad():
                scores = torch.relu(reference(**inputs).logits)[0, :, 0].tolist()
            expected = largest(tokenizer, inputs["input_ids"][0].tolist(), scores)
            assert weights == pytest.approx(expected, abs=1e-4)


def test_training_says_that_it_leaves_the_other_layers_out(checkpoint, tmp_path) -> None:
    pairs = [{"sentence1": text, "sentence2": text[:9]} for text in TEXTS * 2]
    report = flat.train(checkpoint, tmp_path / "out", train_data=pairs, epochs=1)
    (notice,) = (each for each in report.notices if "not trained" in each)
    assert notice.startswith("colbert_linear.pt and sparse_linear.pt of")
    assert not list((tmp_path / "out").glob("*.pt"))


@pytest.fixture(scope="module")
def quantized_m3(checkpoint, tmp_path_factory):
    """Return the folder that `quantize` writes for two engines."""
    folder = tmp_path_factory.mktemp("int8")
    (folder / "texts.txt").write_text("\n".join(make_texts(24)))
    qdqbert.quantize(
        checkpoint,
        folder / "m3",
        calibration_data=folder / "texts.txt",
        targets=("native", "onnxruntime"),
        benchmark=False,
    )
    return folder / "m3"


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_quantized_folders_keep_all_heads(quantized_m3, in_float, engine) -> None:
    with qdqbert.load(quantized_m3, engine=engine) as model:
        found, expected = model.encode(TEXTS, **EVERY), in_float.encode(TEXTS, **EVERY)
        for index in range(len(TEXTS)):
            check_close(of_text(found, index), of_text(expected, index), atol=0.05)


def test_run_writes_columns_of_each_kind(quantized_m3, tmp_path) -> None:
    (tmp_path / "in.csv").write_text(f"text,values\n{TEXTS[0]},1\nmusic,2\n")
    kinds = ["colbert", "dense", "sparse"]
    qdqbert.run(quantized_m3, tmp_path / "in.csv", tmp_path / "a.jsonl", vectors=kinds)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    names = ["text", "values", "embedding", "indices", "predicted_values", "embeddings"]
    assert list(rows[0]) == names
    with qdqbert.load(quantized_m3) as model:
        expected = model.encode([TEXTS[0], "music"], **EVERY)
    for index, row in enumerate(rows):
        one = of_text(expected, index)
        np.testing.assert_array_equal(np.float32(row["embedding"]), one["dense_vecs"])
        np.testing.assert_array_equal(np.float32(row["embeddings"]), one["colbert_vecs"])
        weights = one["lexical_weights"]
        assert list(map(str, row["indices"])) == list(weights)
        assert row["predicted_values"] == pytest.approx(list(weights.values()))
    qdqbert.run(quantized_m3, tmp_path / "in.csv", tmp_path / "b.jsonl", vectors="sparse")
    (first, _) = (json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines())
    assert list(first) == ["text", "values", "indices", "predicted_values"]


def test_run_refuses_kinds_that_an_embedder_does_not_make(checkpoints, tmp_path) -> None:
    (tmp_path / "in.txt").write_text("music\n")
    with pytest.raises(UserInputError, match="makes no colbert vectors of a text"):
        qdqbert.run(
            checkpoints("sentence"), tmp_path / "in.txt", tmp_path / "a.jsonl", vectors=["colbert"]
        )


def test_routes_answer_from_one_model(in_int8, checkpoints) -> None:
    expected = in_int8.encode(TEXTS, **EVERY)
    body = {"inputs": TEXTS}
    with (
        qdqbert.load(checkpoints("sentence")) as other,
        TestClient(build_app({"m3": in_int8, "other": other})) as client,
    ):
        np.testing.assert_allclose(
            answer(client, "/models/m3/embed", body), expected["dense_vecs"], atol=1e-6
        )
        # No other model of the server has weights.
        for found, weights in zip(
            answer(client, "/embed_sparse", body), expected["lexical_weights"], strict=True
        ):
            assert {str(each["index"]): each["value"] for each in found} == pytest.approx(weights)
        for found, vectors in zip(
            answer(client, "/models/m3/embed_all", body), expected["colbert_vecs"], strict=True
        ):
            np.testing.assert_allclose(np.reshape(found, vectors.shape), vectors, atol=1e-6)
        refused = post(client, "/models/other/embed_sparse", body)
        assert refused.status_code == 422
        assert "does not run this route" in refused.json()["error"]
        by_name = {each["name"]: each for each in client.get("/info").json()["models"]}
        assert by_name["m3"]["vectors"] == ["dense", "sparse", "colbert"]
        assert "vectors" not in by_name["other"]
