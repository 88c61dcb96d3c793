"""Rerankers that are language models against `CrossEncoder` of sentence-transformers."""

from __future__ import annotations

import json
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from starlette.testclient import TestClient

import flat
import qdqbert
from qdqbert import CheckpointError, MissingExtraError, UserInputError
from qdqbert.loading.float_checkpoint import comparison
from qdqbert.serving.app import build_app
from rerankers import FLAT, PAIRS, STRUCTURED, recorded_prefixes, save_reranker
from serving_requests import answer

DOCUMENTS = [document for _, document in PAIRS]


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("qwen3", {}),
        ("qwen3", {"tie_word_embeddings": False, "false_token": None}),
        ("qwen2", {"template": STRUCTURED}),
        ("llama", {"template": {"default": STRUCTURED, "other": "{{ 1 }}"}, "max_length": None}),
        ("mistral", {"options": {"add_generation_prompt": True}, "max_length": 250}),
        (
            "qwen3",
            {
                "options": {"chat_template": "other"},
                "template": {"default": "{{ 1 }}", "other": STRUCTURED},
            },
        ),
        ("qwen3", {"template": None, "true_token": 70, "false_token": 7}),
        ("qwen3", {"activation": torch.nn.Identity()}),
        ("gemma", {}),
        ("gemma3_text", {"query_pre_attn_scalar": 20}),
        ("qwen3", {"prompts": {"a": "Be strict.", "b": "Be kind."}, "default_prompt": "a"}),
    ],
)
def test_scores_are_those_of_the_cross_encoder(model_type, changes, tmp_path) -> None:
    reference = save_reranker(tmp_path / "model", model_type, **changes)
    with qdqbert.load(tmp_path / "model", precision="float") as model:
        found = model.predict(PAIRS)
        assert len(set(found.tolist())) == len(PAIRS)
        assert 0 < model.truncated_inputs < len(PAIRS)
        np.testing.assert_allclose(found, reference.predict(PAIRS), atol=1e-4)
        ranked = model.rank("What sat?", DOCUMENTS)
        wanted = reference.rank("What sat?", DOCUMENTS)
        assert [each["corpus_id"] for each in ranked] == [each["corpus_id"] for each in wanted]
        given = {"prompt": "Find what sits on mats."}
        expected = reference.predict(PAIRS, **given)
        np.testing.assert_allclose(model.predict(PAIRS, **given), expected, atol=1e-4)
        if "prompts" in changes:
            expected = reference.predict(PAIRS, prompt_name="b")
            found = model.predict(PAIRS, prompt_name="b")
            np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_generator_compares_yes_and_no_if_a_reranker_is_asked_for(tmp_path) -> None:
    # As sentence-transformers makes a cross-encoder of one.
    words = {"true_token": "yes", "false_token": "no"}
    save_reranker(tmp_path / "model", added_tokens=["yes", "no"], **words)
    plain = tmp_path / "model-plain"
    with pytest.raises(UserInputError, match="no such head"):
        qdqbert.load(plain)
    with pytest.raises(CheckpointError, match="without a chat template"):
        qdqbert.load(plain, task="reranking")
    (plain / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(CheckpointError, match=r"does not render the role 'document'.*jinja"):
        qdqbert.load(plain, task="reranking")
    (plain / "chat_template.jinja").write_text(FLAT)
    reference = CrossEncoder(str(plain), device="cpu", max_length=200)
    with qdqbert.load(plain, task="reranking", precision="float") as model:
        pairs = PAIRS[:3]
        np.testing.assert_allclose(model.predict(pairs), reference.predict(pairs), atol=1e-4)


def test_a_generator_without_the_words_is_no_reranker(tmp_path) -> None:
    save_reranker(tmp_path / "model")
    with pytest.raises(CheckpointError, match="no tokens 'yes' and 'no'"):
        qdqbert.load(tmp_path / "model-plain", task="reranking")


def test_the_comparison_with_float_reads_pairs_in_the_template(tmp_path) -> None:
    save_reranker(tmp_path / "model")
    run = comparison.run_in_parts
    with mock.patch.object(comparison, "run_in_parts", side_effect=run) as compare:
        model = qdqbert.load(tmp_path / "model")
    (job,) = model.scoring_job().encode([("a", "b")])
    start = job.features[0]["input_ids"][:20].tolist()
    texts = compare.call_args.args[1]
    assert len(texts) == 16
    assert all(each["input_ids"][0, :20].tolist() == start for each in texts)


def test_texts_alone_are_refused(tmp_path) -> None:
    save_reranker(tmp_path / "model")
    with qdqbert.load(tmp_path / "model", check=False) as model:
        with pytest.raises(UserInputError, match="reads pairs of a query and a document"):
            model(["a text"])
        with pytest.raises(UserInputError, match="pair of texts"):
            model.predict(["a text", "another", "and a third"])


def test_a_template_that_takes_no_prompt_refuses_one(tmp_path) -> None:
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{% for each in messages %}{{ each.content }}|{% endfor %}"
    )
    reference = save_reranker(tmp_path / "model", template=template)
    with qdqbert.load(tmp_path / "model", precision="float") as model:
        np.testing.assert_allclose(model.predict(PAIRS), reference.predict(PAIRS), atol=1e-4)
        with pytest.raises(UserInputError, match="takes no prompt"):
            model.predict(PAIRS, prompt="Be kind.")


def test_a_template_cannot_be_rendered_without_jinja(tmp_path, monkeypatch) -> None:
    save_reranker(tmp_path / "model")
    with qdqbert.load(tmp_path / "model", check=False) as model:
        expected = model.predict(PAIRS)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    # What was made of it is kept.
    with qdqbert.load(tmp_path / "model", check=False) as model:
        np.testing.assert_array_equal(model.predict(PAIRS), expected)
    (tmp_path / "model" / "chat_template.jinja").write_text(FLAT + "!")
    with pytest.raises(MissingExtraError, match=r"qdqbert\[templates\]"):
        qdqbert.load(tmp_path / "model", check=False)


def test_documents_are_cut_at_their_end_only(tmp_path) -> None:
    save_reranker(tmp_path / "model")
    with qdqbert.load(tmp_path / "model", check=False) as model:
        query, start = "What sat?", "The cat sat. " * 40
        same = [(query, start + "One end."), (query, start + "Another end of the text.")]
        first, second = model.predict(same).tolist()
        assert first == second
        assert model.predict([("Who sat?", start)])[0] != first
        with pytest.raises(UserInputError, match="cut on the left"):
            model._loaded.tokenizer.cutting(200, side="left")


def test_it_is_quantized_evaluated_and_served(tmp_path) -> None:
    prompts = {"strict": "Be strict."}
    reference = save_reranker(tmp_path / "model", prompts=prompts, default_prompt="strict")
    rows = [
        {
            "query": f"What is {number}?",
            "document": f"It is {other}. " * 3,
            "label": int(other == 1),
        }
        for number in range(8)
        for other in range(3)
    ]
    report = qdqbert.quantize(
        tmp_path / "model",
        tmp_path / "int8",
        calibration_data=rows,
        calibration=qdqbert.Calibration(samples=12),
        targets=("onnxruntime", "native-dynamic", "float"),
        benchmark=False,
    )
    assert report.task == "reranking"
    expected = reference.predict(PAIRS)
    for target, engine, atol in (
        ("float", "onnxruntime", 1e-4),
        ("onnxruntime", "onnxruntime", 0.3),
        ("native-dynamic", "native", 0.3),
    ):
        with qdqbert.load(tmp_path / "int8", target=target, engine=engine) as model:
            np.testing.assert_allclose(model.predict(PAIRS), expected, atol=atol)
    found = qdqbert.evaluate(
        tmp_path / "int8", rows, reference=tmp_path / "model", allow_leakage=True
    )
    assert {each.name for each in found.metrics} == {"mrr", "ndcg@10", "map"}
    with pytest.raises(UserInputError, match="chat template"):
        qdqbert.export(tmp_path / "int8", output=tmp_path / "out", to="triton")


def test_requests_and_files_have_prompts(tmp_path) -> None:
    save_reranker(tmp_path / "model", prompts={"a": "Be strict.", "b": "Be kind."})
    texts = tmp_path / "pairs.csv"
    texts.write_text("query,document\nWhat sat?,The cat sat.\n")
    qdqbert.run(tmp_path / "model", texts, tmp_path / "out.jsonl", prompt_name="b")
    with qdqbert.load(tmp_path / "model", check=False) as model:
        pair = [("What sat?", "The cat sat.")]
        (wanted,), (usual,) = model.predict(pair, prompt_name="b"), model.predict(pair)
        assert abs(wanted - usual) > 1e-3
        with TestClient(build_app({"model": model})) as client:
            body = {"query": "What sat?", "documents": ["The cat sat."]}
            for given in ({"prompt_name": "b"}, {"prompt": "Be kind."}, {"instruct": "Be kind."}):
                (found,) = answer(client, "/v1/rerank", {**body, **given})["results"]
                np.testing.assert_allclose(found["relevance_score"], wanted, atol=1e-6)
    row = json.loads((tmp_path / "out.jsonl").read_text())
    np.testing.assert_allclose(row["score"], wanted, atol=1e-6)


def test_it_ranks_documents_of_a_request(tmp_path) -> None:
    save_reranker(tmp_path / "model")
    with qdqbert.load(tmp_path / "model", check=False) as model:
        ranked = model.rank("What sat?", DOCUMENTS)
        with TestClient(build_app({"model": model})) as client:
            body = {"query": "What sat?", "documents": DOCUMENTS}
            found = answer(client, "/v1/rerank", body)["results"]
            many = {"query": "What sat?", "documents": ["A cat sat. " * 80] * 24}
            with recorded_prefixes() as prefixes:
                answer(client, "/v1/rerank", many)
            # All parts of a request share one.
            assert len(prefixes) == 1
    assert [each["index"] for each in found] == [each["corpus_id"] for each in ranked]
    scores = [each["score"] for each in ranked]
    np.testing.assert_allclose([each["relevance_score"] for each in found], scores, atol=1e-6)


def test_training_refuses_them_as_models_and_teachers(tmp_path, checkpoints) -> None:
    save_reranker(tmp_path / "model")
    data = [{"query": "a", "document": "b", "score": 1.0}]
    options = {"output": tmp_path / "out", "train_data": data, "task": "reranking"}
    with pytest.raises(UserInputError, match="has LogitScore after the pooling"):
        qdqbert.train(tmp_path / "model", **options)
    with pytest.raises(UserInputError, match=r"`distill_from=.* has LogitScore after the pooling"):
        flat.train(checkpoints("reranker"), distill_from=tmp_path / "model", **options)
