"""Multi-vector embeddings, compared with sentence-transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import sentence_transformers
import torch
from safetensors.numpy import load_file, save_file

import qdqbert
from conftest import save_multi_vector
from qdqbert.common.errors import CheckpointError, UserInputError

TEXTS = ["the cat sat on the book.", "music", "in the night and the dog " * 3, "", "a Book of rain"]
LONG = [*TEXTS, "in the night and the dog " * 30]
CALLS = ("encode_query", "encode_document", "encode")


def open_theirs(folder):
    return sentence_transformers.MultiVectorEncoder(str(folder), device="cpu")


@pytest.fixture(scope="module")
def theirs(checkpoints):
    return open_theirs(checkpoints("multi_vector"))


@pytest.fixture(scope="module")
def model(checkpoints):
    with qdqbert.load(checkpoints("multi_vector"), precision="float") as model:
        yield model


def cosines(found, expected):
    """Return the cosine of each vector of each text, whose numbers have to be the same."""
    assert [each.shape for each in found] == [each.shape for each in expected]
    one, other = (np.concatenate(each).astype(np.float64) for each in (found, expected))
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return (one * other).sum(axis=1) / lengths


def compare(model, theirs, texts=LONG):
    """Return the least cosine of a vector, in queries, in documents and in texts of no kind."""
    return [
        cosines(getattr(model, name)(texts), getattr(theirs, name)(texts, convert_to_numpy=True))
        .min()
        .item()
        for name in CALLS
    ]


def test_vectors_are_those_of_sentence_transformers(model, theirs) -> None:
    assert min(compare(model, theirs)) > 0.99999
    assert model.task == "multi-vector-embedding"
    one = model.encode_query("music")
    # Queries are filled up with [MASK], and documents lose two of their words.
    assert (one.shape, one.dtype) == ((12, 16), np.float32)
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, atol=1e-5)
    assert model.truncated_inputs == 5
    assert model.encode_query([]) == []


@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("family", ["bert", "modernbert", "mpnet", "roberta"])
def test_both_engines_attend_as_pytorch_does(tmp_path, family, attend) -> None:
    # The window of this ModernBERT is so small that the last tokens attend to none.
    expansion = {"strategy": "fixed", "length": 20, "attend": attend}
    folder = save_multi_vector(tmp_path, family, mask={}, query_expansion=expansion)
    expected = open_theirs(folder)
    for precision, least in (("float", 0.99999), ("int8", 0.999)):
        with qdqbert.load(folder, precision=precision, check=False) as model:
            assert min(compare(model, expected, TEXTS)) > least


# What tokens are read and scored, as options of the modules.
RULES = {
    "min": {"query_expansion": {"strategy": "min", "length": 9, "attend": True}, "mask": {}},
    "lengths": {"query_length": 7, "document_length": 40, "mask": None},
    "unscored": {"query_expansion": {"strategy": "fixed", "length": 9}, "mask": None},
    "token": {
        "query_expansion": {"strategy": "min", "length": 9, "token": "[SEP]"},
        "query_length": 11,
        "mask": {"skiplist_words": ["cat"], "skiplist_tasks": ["query", "document"]},
        "similarity": "meanmaxsim",
    },
    "kept": {"mask": {"keep_only_token_ids": [2, 3, 40, 41, 42]}, "widths": (24, 16)},
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_rules_about_tokens_are_those_of_sentence_transformers(tmp_path, rules) -> None:
    folder = save_multi_vector(tmp_path, **rules)
    expected = open_theirs(folder)
    texts = [*LONG, "cat"]
    with qdqbert.load(folder, precision="float") as model:
        assert min(compare(model, expected, texts)) > 0.99999
        queries, documents = model.encode_query(texts), model.encode_document(texts)
        np.testing.assert_allclose(
            model.similarity(queries, documents),
            expected.similarity(queries, documents).numpy(),
            rtol=1e-5,
            atol=1e-5,
        )


def test_documents_are_ranked_by_their_scores(model, theirs) -> None:
    documents = TEXTS[1:]
    queries, vectors = theirs.encode_query([TEXTS[0]]), theirs.encode_document(documents)
    scores = theirs.similarity(queries, vectors).numpy()[0]
    found = model.rank(TEXTS[0], documents)
    assert [each["corpus_id"] for each in found] == np.argsort(-scores, kind="stable").tolist()
    assert [each["score"] for each in found] == pytest.approx(
        sorted(scores, reverse=True), abs=1e-4
    )
    (best,) = model.rank(TEXTS[0], documents, top_k=1, return_documents=True)
    assert best == {**found[0], "text": documents[found[0]["corpus_id"]]}


def test_a_document_without_vectors_comes_last(model) -> None:
    rng = np.random.default_rng(0)
    query, document = (rng.standard_normal((n, 4)).astype(np.float32) for n in (3, 5))
    found = model.similarity([query], [document, document[:0], -document])
    np.testing.assert_allclose(found[0, 0], (query @ document.T).max(axis=1).sum(), rtol=1e-6)
    np.testing.assert_allclose(found[0, 2], (-query @ document.T).max(axis=1).sum(), rtol=1e-6)
    assert found[0, 1] == -1e9
    np.testing.assert_array_equal(model.similarity(query, document), found[:, :1])


@pytest.mark.parametrize("engine", ["native", "onnxruntime", "openvino"])
def test_int8_is_close_on_each_engine(quantized, theirs, engine) -> None:
    pytest.importorskip(engine if engine != "native" else "numpy")
    with qdqbert.load(quantized("multi_vector").directory, engine=engine) as model:
        assert min(compare(model, theirs)) > 0.99


def make_pylate(folder, **settings):
    """Turn a folder into one of PyLate, which has no modules after Dense."""
    modules = json.loads((folder / "modules.json").read_text())[:2]
    modules[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    for path, removed in (
        ("1_Dense/config.json", ("module_input_name", "module_output_name")),
        ("sentence_bert_config.json", ("document_length", "query_expansion")),
    ):
        content = json.loads((folder / path).read_text())
        kept = {name: value for name, value in content.items() if name not in removed}
        (folder / path).write_text(json.dumps(kept))
    path = folder / "config_sentence_transformers.json"
    content = {"model_type": "ColBERT", "prompts": {}, **settings}
    path.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    "settings",
    [
        # Of these, the vocabulary has the last two. The text "##s" would be three tokens.
        {"query_prefix": "[unused] ", "document_prefix": "cat ", "query_length": 10},
        {"query_prefix": "##s ", "document_prefix": "cat "},
        {"do_query_expansion": False, "query_length": 9, "document_length": 14},
        {"attend_to_expansion_tokens": True, "skiplist_words": ["cat"], "document_prefix": "[D] "},
        {},
    ],
)
def test_models_of_pylate_are_read_as_sentence_transformers_reads_them(
    checkpoint_copy, settings
) -> None:
    folder = make_pylate(checkpoint_copy("multi_vector"), **settings)
    expected = open_theirs(folder)
    with qdqbert.load(folder, precision="float") as model:
        assert model.prompts.keys() == {
            name for name in ("query", "document") if f"{name}_prefix" in settings
        }
        assert min(compare(model, expected)) > 0.99999


@pytest.mark.parametrize("similarity", ["MaxSim", "cosine", "xtr", None])
def test_models_of_pylate_may_have_no_type_and_its_name_of_the_similarity(
    checkpoint_copy, similarity
) -> None:
    # As in answerai-colbert-small-v1.
    folder = make_pylate(
        checkpoint_copy("multi_vector"),
        attend_to_expansion_tokens=False,
        query_prefix="[unused] ",
        query_length=10,
        similarity_fn_name=similarity,
    )
    expected = open_theirs(folder)
    path = folder / "config_sentence_transformers.json"
    content = json.loads(path.read_text())
    del content["model_type"]
    path.write_text(json.dumps(content))
    with qdqbert.load(folder, precision="float") as model:
        assert model.similarity_fn_name == expected.similarity_fn_name == "maxsim"
        assert min(compare(model, expected)) > 0.99999


@pytest.mark.parametrize(
    "metadata",
    [
        {"query_maxlen": 10, "doc_maxlen": 20, "dim": 128, "doc_token_id": "cat"},
        {"mask_punctuation": False, "attend_to_mask_tokens": True},
        None,
    ],
)
def test_checkpoints_of_stanford_are_read_as_sentence_transformers_reads_them(
    save_tiny, tmp_path, metadata
) -> None:
    folder = save_tiny(tmp_path, "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    path = folder / "model.safetensors"
    weights = {f"bert.{name}": each for name, each in load_file(path).items()}
    projection = np.random.default_rng(0).standard_normal((128, 32)).astype(np.float32)
    save_file({**weights, "linear.weight": projection}, path, metadata={"format": "pt"})
    if metadata is not None:
        (folder / "artifact.metadata").write_text(json.dumps(metadata))
    expected = open_theirs(folder)
    with qdqbert.load(folder, precision="float") as model:
        assert model.encode_query("cat").shape[1] == 128
        assert min(compare(model, expected)) > 0.99999


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "queries"}, "`task='queries'` is unknown. Known: query, document"),
        ({"prompt_name": "x"}, "`prompt_name='x'` is unknown; the model has: 'document', 'query'"),
    ],
)
def test_wrong_options_are_refused(model, options, message) -> None:
    with pytest.raises(UserInputError, match=message):
        model.encode(TEXTS, **options)


@pytest.mark.parametrize("as_array", [np.asarray, torch.from_numpy])
def test_pairs_are_compared_as_by_sentence_transformers(model, theirs, as_array) -> None:
    queries, documents = model.encode_query(TEXTS), model.encode_document(TEXTS)
    sides = [[as_array(each) for each in side] for side in (queries, documents)]
    expected = theirs.similarity_pairwise(queries, documents)
    np.testing.assert_allclose(model.similarity_pairwise(*sides), expected, rtol=1e-5)
    one = model.similarity_pairwise(*(side[0] for side in sides))
    np.testing.assert_allclose(one, expected[:1], rtol=1e-5)
    with pytest.raises(UserInputError, match="`documents` must be as many as the others"):
        model.similarity_pairwise(queries, documents[:1])


def test_vectors_of_other_shapes_are_refused(model) -> None:
    vectors = np.ones((3, 4), np.float32)
    with pytest.raises(UserInputError, match="same number of dimensions; got 4, 5"):
        model.similarity([vectors], [np.ones((2, 5), np.float32)])
    with pytest.raises(UserInputError, match=r"`queries` must be arrays .* one of shape \(4,\)"):
        model.similarity([vectors[0]], [vectors])
    with pytest.raises(UserInputError, match="`top_k` must be at least 1, got 0"):
        model.rank("a", ["b"], top_k=0)


def test_deberta_cannot_expand_queries_by_tokens_that_are_not_attended_to(tmp_path) -> None:
    expansion = {"strategy": "fixed", "length": 9, "attend": False}
    folder = save_multi_vector(tmp_path, "deberta-v2", mask={}, query_expansion=expansion)
    with pytest.raises(CheckpointError, match=r"`deberta-v2` mask such tokens.* Set `attend`"):
        qdqbert.load(folder)


def test_weights_of_the_modules_belong_to_the_packed_model(checkpoint_copy, model) -> None:
    folder = checkpoint_copy("multi_vector")
    path = folder / "1_Dense" / "model.safetensors"
    weights = load_file(path)
    save_file({name: -each for name, each in weights.items()}, path)
    # Of a model in memory, too.
    with qdqbert.load(open_theirs(folder), precision="float") as changed:
        np.testing.assert_allclose(changed.encode("music"), -model.encode("music"), atol=1e-5)


def test_the_report_compares_vectors_of_tokens(quantized) -> None:
    for target in quantized("multi_vector").report.targets:
        assert 0.98 < target.fidelity.cosine_min < target.fidelity.cosine_mean < 1
        assert target.recall is None
        assert target.lowering.is_exact


@pytest.mark.parametrize(("prompt", "call"), [(None, "encode_document"), ("query", "encode_query")])
def test_files_of_rows_have_lists_of_vectors(quantized, tmp_path, prompt, call) -> None:
    folder = quantized("multi_vector").directory
    (tmp_path / "texts.txt").write_text("a cat.\nmusic\n")
    options = {"input": tmp_path / "texts.txt", "prompt_name": prompt}
    with qdqbert.load(folder) as model:
        expected = getattr(model, call)(["a cat.", "music"])
    for suffix in ("jsonl", "parquet"):
        path = tmp_path / f"out.{suffix}"
        qdqbert.run(folder, output=path, **options)
        if suffix == "jsonl":
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        else:
            rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
        for row, wanted in zip(rows, expected, strict=True):
            np.testing.assert_allclose(row["embeddings"], wanted, atol=1e-5)
    with pytest.raises(UserInputError, match=r"\.npy files are for embeddings"):
        qdqbert.run(folder, output=tmp_path / "out.npy", **options)


def test_what_is_not_supported_is_refused_by_name(checkpoints, quantized, tmp_path) -> None:
    folder, data = quantized("multi_vector").directory, tmp_path / "pairs.csv"
    data.write_text("sentence1,sentence2,score\na cat,a dog,0.5\n")
    with pytest.raises(UserInputError, match="`train` does not train models for the task 'multi-v"):
        qdqbert.train(checkpoints("multi_vector"), tmp_path / "out", train_data=data)
    with pytest.raises(UserInputError, match="quantized for task 'multi-vector-embedding'"):
        qdqbert.export(folder, to="triton")
    with pytest.raises(UserInputError, match="does not apply to multi-vector embedders"):
        qdqbert.quantize(checkpoints("multi_vector"), tmp_path / "x", keep_vocabulary=data)
    with pytest.raises(UserInputError, match=r"\.onnx files are not read for the task `multi-v"):
        qdqbert.quantize(
            folder / "onnxruntime" / "model.onnx", tmp_path / "again", task="multi-vector-embedding"
        )


def test_pairs_are_scored_by_mean_max_sim(checkpoints, theirs, tmp_path) -> None:
    rng = np.random.default_rng(0)
    data, scores = tmp_path / "pairs.csv", rng.random(12).round(3)
    pairs = [(f"cat book {i}", f"{TEXTS[(i + 1) % 3]} {i % 4}") for i in range(12)]
    rows = [f"{a},{b},{score}" for (a, b), score in zip(pairs, scores, strict=True)]
    data.write_text("\n".join(["sentence1,sentence2,score", *rows]))
    report = qdqbert.evaluate(checkpoints("multi_vector"), data)
    found = {each.name: each.value for each in report.metrics}
    # The words that queries keep are those of both texts here.
    first, second = (
        theirs.encode(list(side), task="none", convert_to_numpy=True)
        for side in zip(*pairs, strict=True)
    )
    sums = [(a @ b.T).max(axis=1).mean() for a, b in zip(first, second, strict=True)]
    assert found["pearson"] == pytest.approx(100 * np.corrcoef(sums, scores)[0, 1], abs=0.01)
