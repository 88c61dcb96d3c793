"""OpenVINO's own format, run by OpenVINO GenAI's pipelines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import qdqbert
from qdqbert.common.errors import UserInputError

genai = pytest.importorskip("openvino_genai", reason="pip install 'qdqbert[export]'")
pytestmark = pytest.mark.openvino

TEXTS = [
    "the cat sat on the book",
    "",
    "rain",
    "a longer text about the river, the night and the music " * 8,
    "naïve café 中文 😀 \x07 end",
]
MEAN = genai.TextEmbeddingPipeline.PoolingType.MEAN


def vectors_of(folder, texts, **settings):
    pipeline = genai.TextEmbeddingPipeline(str(folder), "CPU", **settings)
    return np.array(pipeline.embed_documents(texts), dtype=np.float32)


@pytest.fixture(scope="module")
def exported(quantized, tmp_path_factory):
    """The report of an exported embedder."""
    output = tmp_path_factory.mktemp("exported") / "embedder"
    return qdqbert.export(quantized("sentence").directory, to="openvino", output=output)


def test_a_pipeline_gives_the_embeddings_of_the_folder(exported, quantized) -> None:
    # All texts are one batch there, and the fourth one is cut at 32 tokens.
    found = vectors_of(exported.directory, TEXTS, pooling_type=MEAN, normalize=True)
    with qdqbert.load(quantized("sentence").directory, engine="openvino") as model:
        np.testing.assert_allclose(found, model.encode(TEXTS), atol=0.02)
    (agreement,) = exported.agreement
    assert agreement.output == "sentence_embedding"
    assert agreement.worst_sqnr_db > 15


def test_the_usage_of_the_report_runs(exported, quantized) -> None:
    names = {"texts": TEXTS}
    exec(exported.usage.replace("pipeline.embed", "found = pipeline.embed"), names)
    with qdqbert.load(quantized("sentence").directory, engine="openvino") as model:
        np.testing.assert_allclose(names["found"], model.encode(TEXTS), atol=0.02)


def test_the_folder_says_what_it_is_and_how_a_server_pools(exported) -> None:
    folder = Path(exported.directory)
    manifest = json.loads((folder / "export.json").read_text())
    assert (manifest["format"], manifest["to"]) == ("qdqbert-export/1", "openvino")
    assert manifest["max_length"] == 32
    assert manifest["outputs"] == ["last_hidden_state"]
    assert {"openvino-genai", "openvino-tokenizers"} <= set(manifest["versions"])
    text = (folder / "graph.pbtxt").read_text()
    assert "pooling: MEAN" in text
    assert "normalize_embeddings: true" in text
    assert 'name: "embedder"' not in text
    assert set(exported.files) == {
        *("openvino_model.xml", "openvino_model.bin", "graph.pbtxt"),
        *("openvino_tokenizer.xml", "openvino_tokenizer.bin"),
        *("config.json", "tokenizer.json", "tokenizer_config.json"),
    }


def test_prompts_are_instructions_of_the_pipeline(with_settings, tmp_path) -> None:
    folder = with_settings(
        prompts={"query": "the dog ", "document": "the house "}, default_prompt_name="query"
    )
    report = qdqbert.export(folder, to="openvino", output=tmp_path / "out")
    assert "query_instruction='the dog '" in report.usage
    assert "embed_instruction='the house '" in report.usage
    assert any("has no prompts" in notice for notice in report.notices)
    names = {"texts": ["rain"]}
    exec(report.usage.replace("pipeline.embed", "found = pipeline.embed"), names)
    with qdqbert.load(folder, engine="openvino") as model:
        expected = model.encode_document(["rain"])
        np.testing.assert_allclose(names["found"], expected, atol=0.02)
        query = names["pipeline"].embed_query("rain")
        np.testing.assert_allclose(query, model.encode_query("rain"), atol=0.02)


def test_a_setting_that_a_pipeline_does_not_have_is_refused(with_settings, tmp_path) -> None:
    folder = with_settings(truncate_dim=8)
    with pytest.raises(UserInputError, match="keeps 8 dimensions of each embedding"):
        qdqbert.export(folder, to="openvino", output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_pooling_that_a_pipeline_does_not_have_is_refused(quantized, tmp_path) -> None:
    folder = shutil.copytree(quantized("sentence").directory, tmp_path / "max")
    pooling = {"word_embedding_dimension": 32, "pooling_mode_max_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(UserInputError, match="no pooling 'max', only mean, cls") as caught:
        qdqbert.export(folder, to="openvino", output=tmp_path / "out")
    assert caught.value.argument == "returns"


@pytest.mark.slow
def test_states_and_embeddings_can_be_returned_together(quantized, tmp_path) -> None:
    report = qdqbert.export(
        quantized("sentence").directory, to="openvino", output=tmp_path / "out", returns="both"
    )
    assert report.outputs == ("last_hidden_state", "sentence_embedding")
    assert [each.output for each in report.agreement] == list(report.outputs)
    assert "graph.pbtxt" not in report.files


@pytest.mark.slow
def test_a_reranker_scores_as_the_folder_does(of_pairs, tmp_path) -> None:
    folder = of_pairs("reranker")
    report = qdqbert.export(folder, to="openvino", output=tmp_path / "out")
    pipeline = genai.TextRerankPipeline(report.directory, "CPU", top_n=3)
    documents = ["a dog", "the music of the night " * 30, "book"]
    found = dict(pipeline.rerank("where is the cat", documents))
    with qdqbert.load(folder, engine="openvino") as model:
        expected = model.predict(
            [("where is the cat", each) for each in documents], activation="sigmoid"
        )
    np.testing.assert_allclose([found[index] for index in range(3)], expected, atol=0.01)
    assert report.inputs == ("text", "text_pair")
    assert [each.output for each in report.agreement] == ["logits", "score"]


@pytest.mark.slow
def test_a_classifier_is_a_tokenizer_and_a_graph(quantized, tmp_path) -> None:
    folder = quantized("classifier").directory
    report = qdqbert.export(folder, to="openvino", output=tmp_path / "out")
    names = {"texts": ["the cat", "a dog in the rain"]}
    exec(report.usage.replace("model({", "found = model({"), names)
    with qdqbert.load(folder, engine="openvino") as model:
        answers = model(names["texts"], top_k=None, function_to_apply="none")
    labels = {"Negative": 0, "Neutral": 1, "Positive": 2}
    for row, answer in zip(names["found"]["logits"], answers, strict=True):
        for each in answer:
            assert row[labels[each["label"]]] == pytest.approx(each["score"], abs=0.05)


@pytest.mark.slow
def test_a_classifier_of_pairs_has_a_tokenizer_with_two_inputs(
    of_pairs, logits_of, tmp_path
) -> None:
    folder = of_pairs("classifier")
    report = qdqbert.export(folder, to="openvino", output=tmp_path / "out")
    others = ["a dog", "the music of the night " * 30, "book", "", "cat"]
    names = {"texts": TEXTS, "text_pairs": others}
    exec(report.usage.replace("model({", "found = model({"), names)
    pairs = list(zip(TEXTS, others, strict=True))
    np.testing.assert_allclose(names["found"]["logits"], logits_of(folder, pairs), atol=0.05)
    assert report.inputs == ("text", "text_pair")
    assert [each.output for each in report.agreement] == ["logits"]
    assert not any("TextRerankPipeline" in notice for notice in report.notices)


@pytest.mark.slow
def test_a_score_of_single_texts_is_a_tokenizer_and_a_graph(quantized, logits_of, tmp_path) -> None:
    folder = quantized("reranker").directory
    report = qdqbert.export(folder, to="openvino", output=tmp_path / "out")
    names = {"texts": TEXTS}
    exec(report.usage.replace("model({", "found = model({"), names)
    np.testing.assert_allclose(names["found"]["logits"], logits_of(folder, TEXTS), atol=0.05)
    assert report.inputs == ("text",)


@pytest.mark.parametrize("kind", ["bpe", "bpe with a space before", "unigram", "unigram with NFKC"])
@pytest.mark.usual("unigram with NFKC")
def test_tokens_of_other_kinds_of_tokenizers_are_equal(kind, with_tokenizer, tmp_path) -> None:
    from qdqbert.integrations.exporting.checks import check_tokens
    from qdqbert.integrations.exporting.openvino_files import CompiledTokenizer, write_tokenizer
    from qdqbert.integrations.exporting.source import open_source

    source = open_source(
        with_tokenizer(kind),
        "onnxruntime",
        target=None,
        returns=None,
        default="last_hidden_state",
        name="model",
    )
    write_tokenizer(source, tmp_path)
    tokenize = CompiledTokenizer(tmp_path)
    check_tokens(source, tokenize.ids, converter="OpenVINO Tokenizers")
    pair = ("the cat", "a dog")
    assert tokenize.ids([pair]) == [source.tokenizer().encode(pair).ids]
