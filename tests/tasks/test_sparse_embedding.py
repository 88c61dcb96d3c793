"""Sparse embeddings, compared with sentence-transformers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import scipy.sparse
import sentence_transformers
import torch
import transformers

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.tasks.sparse_vectors import largest_weights, stack_vectors

TEXTS = ["the cat sat on the book", "music", "in the night and the dog " * 3, "", "a Book of rain"]
LONG = [*TEXTS, "in the night and the dog " * 30]


@pytest.fixture(scope="module")
def theirs(checkpoints):
    return sentence_transformers.SparseEncoder(str(checkpoints("sparse")), device="cpu")


@pytest.fixture(scope="module")
def model(checkpoints):
    with qdqbert.load(checkpoints("sparse"), precision="float") as model:
        yield model


def cosines(one, other):
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(axis=1) / lengths


def dense(embeddings):
    return embeddings.to_dense().numpy()


def test_weights_are_those_of_sentence_transformers(model, theirs) -> None:
    found, expected = model.encode(LONG), dense(theirs.encode(LONG))
    assert (model.task, found.shape) == ("sparse-embedding", expected.shape)
    np.testing.assert_allclose(found.to_dense(), expected, atol=1e-5)
    # Those of random weights are not few, and none is negative.
    assert found.values.min() > 0
    assert len(found.values) < expected.size
    assert model.truncated_inputs == 1
    one = model.encode(TEXTS[0])
    np.testing.assert_allclose(one.to_dense(), dense(theirs.encode(TEXTS[:1])), atol=1e-5)
    assert model.encode([]).shape == (0, model.get_sentence_embedding_dimension())


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_int8_is_close_and_prompts_are_kept(quantized, theirs, engine) -> None:
    with qdqbert.load(quantized("sparse").directory, engine=engine) as model:
        assert cosines(model.encode(LONG).to_dense(), dense(theirs.encode(LONG))).min() > 0.98
        for name in ("encode_query", "encode_document"):
            found, expected = (getattr(each, name)(TEXTS) for each in (model, theirs))
            assert cosines(found.to_dense(), dense(expected)).min() > 0.98
        plain, named = model.encode(TEXTS), model.encode(TEXTS, prompt_name="query")
        assert not np.array_equal(plain.to_dense(), named.to_dense())
        np.testing.assert_array_equal(
            named.to_dense(), model.encode([f"the {each}" for each in TEXTS]).to_dense()
        )


def test_the_report_has_the_words_of_float_and_int8(quantized) -> None:
    for target in quantized("sparse").report.targets:
        words = target.fidelity.words
        assert words.overlap_percent > 75
        assert words.active == pytest.approx(words.float_active, rel=0.05)
        assert target.fidelity.cosine_min > 0.95
        assert target.recall is None
        assert target.lowering.is_exact


def test_only_the_largest_weights_are_kept(model, theirs) -> None:
    found = model.encode(TEXTS, max_active_dims=7)
    assert np.diff(found.indptr).tolist() == [7] * len(TEXTS)
    expected = dense(theirs.encode(TEXTS, max_active_dims=7))
    np.testing.assert_allclose(found.to_dense(), expected, atol=1e-5)


# Of torch, about the matrices of sentence-transformers.
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_words_and_similarities_are_those_of_sentence_transformers(model, theirs) -> None:
    found, expected = model.encode(TEXTS), theirs.encode(TEXTS)
    np.testing.assert_allclose(
        model.similarity(found, model.encode(TEXTS[:2])),
        theirs.similarity(expected, theirs.encode(TEXTS[:2])).numpy(),
        rtol=1e-4,
    )
    for ours, wanted in zip(
        model.decode(found, top_k=5), theirs.decode(expected, top_k=5), strict=True
    ):
        assert [word for word, _ in ours] == [word for word, _ in wanted]
        assert [each for _, each in ours] == pytest.approx([each for _, each in wanted], abs=1e-5)
    assert len(model.decode(found)[0]) == np.diff(found.indptr)[0]


FORMS = {
    "matrix": lambda model, texts: model.encode(texts),
    "row": lambda model, texts: model.encode(texts)[0],
    "rows": lambda model, texts: list(model.encode(texts)),
    "array": lambda model, texts: model.encode(texts).to_dense(),
    "row of an array": lambda model, texts: model.encode(texts).to_dense()[0],
    "dense by option": lambda model, texts: model.encode(texts, convert_to_sparse_tensor=False),
    "tensor": lambda model, texts: model.encode(texts, convert_to_tensor=True, save_to_cpu=True),
    "row of a tensor": lambda model, texts: model.encode(texts, convert_to_tensor=True)[0],
    "dense tensor": lambda model, texts: model.encode(
        texts, convert_to_tensor=True, convert_to_sparse_tensor=False
    ),
    "list of tensors": lambda model, texts: list(model.encode(texts, convert_to_tensor=True)),
    "list of matrices": lambda model, texts: tuple(map(model.encode, texts)),
    "scipy": lambda model, texts: scipy.sparse.coo_array(model.encode(texts).to_dense()),
    "csr": lambda model, texts: model.encode(texts, convert_to_tensor=True).to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:Sparse invariant checks")
@pytest.mark.parametrize("form", FORMS)
def test_embeddings_are_taken_in_each_form(model, theirs, form) -> None:
    given, whole = FORMS[form](model, TEXTS), theirs.encode(TEXTS)
    expected = whole[0] if "row " in f"{form} " else whole
    np.testing.assert_allclose(
        model.similarity(given, model.encode(TEXTS)), theirs.similarity(expected, whole), rtol=1e-4
    )
    np.testing.assert_allclose(
        model.similarity_pairwise(given, given),
        theirs.similarity_pairwise(expected, expected).to_dense(),
        rtol=1e-4,
    )
    for found, wanted in (
        (model.decode(given, 3), theirs.decode(expected, 3)),
        (
            model.decode(model.intersection(model.encode(TEXTS[0]), given), 3),
            theirs.decode(theirs.intersection(whole[0], expected), 3),
        ),
    ):
        names, weights = np.split(np.array(found, object), 2, axis=-1)
        own_names, own_weights = np.split(np.array(wanted, object), 2, axis=-1)
        assert names.tolist() == own_names.tolist()
        np.testing.assert_allclose(weights.astype(float), own_weights.astype(float), rtol=1e-4)
    assert model.sparsity(given) == pytest.approx(theirs.sparsity(expected), rel=1e-5)


@pytest.mark.parametrize("wrong", ["a", None, 3, [[1], [1, 2]], np.zeros((1, 2, 3)), ["a"], {}])
def test_what_is_no_embedding_is_refused_by_name(model, wrong) -> None:
    found = model.encode(TEXTS)
    for call in (model.decode, model.sparsity):
        with pytest.raises(UserInputError, match="`embeddings` must be embeddings as `encode`"):
            call(wrong)
    for call in (model.similarity, model.similarity_pairwise):
        with pytest.raises(UserInputError, match="`embeddings2` must be embeddings as `encode`"):
            call(found, wrong)
    with pytest.raises(UserInputError, match="`embeddings_1` must be embeddings as `encode`"):
        model.intersection(wrong, found)


def test_a_folder_may_compare_by_cosine(checkpoint_copy) -> None:
    folder = checkpoint_copy("sparse")
    path = folder / "config_sentence_transformers.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({**settings, "similarity_fn_name": "cosine", "max_active_dims": 9}))
    with qdqbert.load(folder, precision="float") as model:
        found = model.encode(TEXTS)
        assert np.diff(found.indptr).tolist() == [9] * len(TEXTS)
        a = found.to_dense().astype(np.float64)
        unit = a / np.linalg.norm(a, axis=1, keepdims=True)
        np.testing.assert_allclose(model.similarity(found, found), unit @ unit.T, atol=1e-6)
    path.write_text(json.dumps({**settings, "similarity_fn_name": "manhattan"}))
    with qdqbert.load(folder, precision="float") as model:
        found = model.encode(TEXTS)
        with pytest.raises(UserInputError, match=r"'manhattan'.* Known: dot, cosine"):
            model.similarity(found, found)


def test_a_masked_language_model_is_run_as_splade(checkpoints, theirs, tmp_path) -> None:
    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    for name in names:
        shutil.copyfile(checkpoints("sparse") / name, tmp_path / name)
    with qdqbert.load(tmp_path, precision="float", task="sparse-embedding") as model:
        np.testing.assert_allclose(
            model.encode(TEXTS).to_dense(), dense(theirs.encode(TEXTS)), atol=1e-5
        )
    with qdqbert.load(theirs, precision="float") as model:
        assert model.task == "sparse-embedding"
    with qdqbert.load(tmp_path, precision="float") as model:
        assert model.task == "fill-mask"
    with pytest.raises(UserInputError, match=r"`task='fill-mask'`: .* 'sparse-embedding'"):
        qdqbert.load(checkpoints("sparse"), precision="float", task="fill-mask")


@pytest.fixture(scope="module")
def routed(checkpoints, tmp_path_factory):
    """A model with weights of tokens in queries, and its folder."""
    from sentence_transformers.sparse_encoder import modules

    source = str(checkpoints("sparse"))
    transformer = modules.Transformer(source, transformer_task="fill-mask")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    tokenizer.model_max_length = transformer.max_seq_length = 32
    weights = torch.rand(1024) * 3 - 0.1
    weights[::3] = 0
    queries = modules.SparseStaticEmbedding(tokenizer, weights, frozen=True)
    router = modules.Router.for_query_document(
        [queries], [transformer, modules.SpladePooling("sum", "log1p_relu")]
    )
    model = sentence_transformers.SparseEncoder(
        modules=[router], prompts={"query": "the "}, device="cpu"
    )
    folder = tmp_path_factory.mktemp("routed")
    model.save(str(folder))
    shutil.copyfile(
        folder / "document_0_Transformer" / "tokenizer.json",
        folder / "query_0_SparseStaticEmbedding" / "tokenizer.json",
    )
    return model, folder


@pytest.mark.slow
def test_queries_need_no_model_if_their_tokens_have_weights(routed, tmp_path) -> None:
    theirs, folder = routed
    out = tmp_path / "int8"
    qdqbert.quantize(
        folder,
        out,
        targets=("native",),
        benchmark=False,
        calibration=qdqbert.Calibration(samples=16),
    )
    for path, options, least in (
        (folder, {"precision": "float"}, 0.999999),
        (folder, {}, 0.98),
        (out, {}, 0.98),
    ):
        with qdqbert.load(path, **options) as model:
            found = model.encode_query(LONG)
            np.testing.assert_array_equal(found.to_dense(), dense(theirs.encode_query(LONG)))
            assert model.truncated_inputs == 1
            for name in ("encode_document", "encode"):
                documents, expected = (getattr(each, name)(TEXTS) for each in (model, theirs))
                assert cosines(documents.to_dense(), dense(expected)).min() > least
            top = model.encode_query(TEXTS[0], max_active_dims=2)
            np.testing.assert_array_equal(
                top.to_dense()[0],
                theirs.encode_query(TEXTS[0], max_active_dims=2).to_dense().numpy(),
            )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_active_dims": 0}, "`max_active_dims` must be at least 1, got 0"),
        ({"task": "queries"}, "`task='queries'` is unknown. Known: query, document"),
        ({"prompt_name": "x"}, "`prompt_name='x'` is unknown; the model has: 'query', 'document'"),
    ],
)
def test_wrong_options_are_refused(model, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        model.encode(TEXTS, **options)


def test_embeddings_of_another_vocabulary_and_wrong_counts_are_refused(model) -> None:
    found = model.encode(TEXTS)
    other = stack_vectors([], 7)
    with pytest.raises(UserInputError, match="got 1024 and 7"):
        model.similarity(found, other)
    with pytest.raises(UserInputError, match="`top_k` must be at least 1, got 0"):
        model.decode(found, top_k=0)
    with pytest.raises(UserInputError, match="`embeddings2` must be as many as the others, 5"):
        model.similarity_pairwise(found, found[:2])
    with pytest.raises(UserInputError, match="`embeddings_1` must be the embedding of one text"):
        model.intersection(found, found)
    with pytest.raises(IndexError, match="5 embeddings, and none with number 5"):
        found.row(5)


def test_rows_are_those_of_a_csr_matrix() -> None:
    rng = np.random.default_rng(0)
    rows = np.where(rng.random((6, 11)) < 0.4, rng.standard_normal((6, 11)), 0).astype(np.float32)
    rows[2] = 0
    made = stack_vectors([largest_weights(np.arange(11), row, None) for row in rows], 11)
    np.testing.assert_array_equal(made.to_dense(), rows)
    assert (len(made), made.indices.dtype, made.indptr.dtype) == (6, np.int32, np.int64)
    np.testing.assert_array_equal(made.row(1).values, rows[1][rows[1] != 0])
    np.testing.assert_allclose(made.dot(made), rows @ rows.T, atol=1e-6)
    np.testing.assert_allclose(made.lengths(), np.linalg.norm(rows, axis=1), rtol=1e-6)


def test_rows_are_taken_as_numpy_takes_them() -> None:
    rows = np.eye(300, 310, dtype=np.float32)
    made = stack_vectors([largest_weights(np.arange(310), row, None) for row in rows], 310)
    assert [each.indices.tolist() for each in made] == [[number] for number in range(300)]
    for index in (0, -1, np.uint8(255), np.int64(-300), np.array(7)):
        assert made[index].indices.tolist() == np.flatnonzero(rows[index]).tolist()
    assert made.row(np.uint8(255)).indices.tolist() == [255]
    mask = rows[:, 3:9].any(axis=1)
    for index in (slice(2, 9, 3), slice(None, None, -1), slice(5, 5), [4, -1, 4], [], mask):
        assert made[index].shape == rows[index].shape
        np.testing.assert_array_equal(made[index].to_dense(), rows[index])
    for wrong in (300, -301, "a", 1.5, (1, 2)):
        with pytest.raises(IndexError):
            made[wrong]


def test_the_largest_weights_are_in_the_order_of_words() -> None:
    values = np.array([0.5, 0, -2, 1, 1, 1], np.float32)
    found = largest_weights(np.arange(10, 16), values, 3)
    # Of equal weights, the first words are kept.
    assert found.indices.tolist() == [12, 13, 14]
    assert found.values.tolist() == [-2, 1, 1]


def test_files_of_rows_have_words_and_weights(quantized, tmp_path) -> None:
    folder = quantized("sparse").directory
    (tmp_path / "texts.txt").write_text("a cat\nmusic\n")
    options = {"input": tmp_path / "texts.txt", "top_k": 4}
    qdqbert.run(folder, output=tmp_path / "out.jsonl", **options)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with qdqbert.load(folder) as model:
        expected = model.encode(["a cat", "music"], max_active_dims=4)
    for index, row in enumerate(rows):
        assert row["indices"] == expected.row(index).indices.tolist()
        assert row["values"] == pytest.approx(expected.row(index).values.tolist())
    with pytest.raises(UserInputError, match=r"\.npy files are for embeddings"):
        qdqbert.run(folder, output=tmp_path / "out.npy", **options)


def test_what_is_not_supported_is_refused_by_name(checkpoints, quantized, tmp_path) -> None:
    folder, data = quantized("sparse").directory, tmp_path / "pairs.csv"
    data.write_text("sentence1,sentence2,score\na cat,a dog,0.5\n")
    with pytest.raises(UserInputError, match="`train` does not train models for the task 'sparse"):
        qdqbert.train(checkpoints("sparse"), tmp_path / "out", train_data=data)
    with pytest.raises(UserInputError, match="quantized for task 'sparse-embedding'"):
        qdqbert.export(folder, to="triton")
    with pytest.raises(UserInputError, match="`task='fill-mask'` does not fit"):
        qdqbert.evaluate(folder, data, task="fill-mask")
    with pytest.raises(UserInputError, match=r"\.onnx files are not read for the task `sparse"):
        qdqbert.quantize(
            folder / "onnxruntime" / "model.onnx", tmp_path / "again", task="sparse-embedding"
        )


def test_pairs_are_scored_by_cosines(checkpoints, quantized, theirs, tmp_path) -> None:
    rng = np.random.default_rng(0)
    data, scores = tmp_path / "pairs.csv", rng.random(12).round(3)
    pairs = [(f"{TEXTS[i % 3]} {i}", f"{TEXTS[(i + 1) % 3]} {i % 4}") for i in range(12)]
    rows = [f"{a},{b},{score}" for (a, b), score in zip(pairs, scores, strict=True)]
    data.write_text("\n".join(["sentence1,sentence2,score", *rows]))
    report = qdqbert.evaluate(checkpoints("sparse"), data)
    found = {each.name: each.value for each in report.metrics}
    first, second = (dense(theirs.encode(list(side))) for side in zip(*pairs, strict=True))
    expected = np.corrcoef(cosines(first, second), scores)[0, 1]
    assert found["pearson"] == pytest.approx(100 * expected, abs=0.01)
    report = qdqbert.evaluate(quantized("sparse").directory, data, reference=checkpoints("sparse"))
    assert report.fidelity.cosine_min > 0.95
    assert report.fidelity.words.float_active > 1
