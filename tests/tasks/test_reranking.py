"""Reranking: data, metrics compared with plain loops, and evaluation of a checkpoint."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import transformers

import qdqbert
from qdqbert.common.errors import DataFileError, UserInputError
from qdqbert.data.rows import data
from qdqbert.data.rows.data import Columns
from qdqbert.data.rows.lines import read_lines
from qdqbert.data.tokenizing.encoding import Encoded
from qdqbert.tasks import ranking_metrics
from qdqbert.tasks.reranking import RERANKING as TASK
from qdqbert.tasks.reranking import RankingExample
from qdqbert.tasks.task import Features, Outcome
from task_files import sentence

ID2LABEL = {0: "LABEL_0"}


def features(*rows: tuple[str, str | None]) -> Features:
    """Return features of documents, given their group and relevance."""
    examples = tuple(
        RankingExample(text="q", text_pair="d", label=label, group=group) for group, label in rows
    )
    return Features(examples=examples, encoded=Encoded(inputs=(), padding={}, truncated=0))


def scores_of(*values: float) -> list[np.ndarray]:
    return [np.array([value], np.float32) for value in values]


def slow_metrics(scores, relevance, k):
    """MRR, nDCG@k and MAP of one query by their definitions."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], relevance[index]))
    ranked = [relevance[index] for index in order]
    hits = [place for place, each in enumerate(ranked, start=1) if each > 0]
    gains = [max(each, 0) for each in ranked]

    def dcg(values):
        return sum(each / math.log2(place + 1) for place, each in enumerate(values[:k], start=1))

    return {
        "mrr": 1 / hits[0],
        "ndcg": dcg(gains) / dcg(sorted(gains, reverse=True)),
        "map": sum((at + 1) / place for at, place in enumerate(hits)) / len(hits),
    }


@pytest.mark.parametrize("seed", range(8))
def test_metrics_of_a_query_equal_their_definitions(seed) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    # Few values, so that many are equal.
    scores, relevance = rng.integers(0, 6, count).tolist(), rng.integers(-1, 4, count).tolist()
    relevance[0] = 2
    ranked = ranking_metrics.rank(scores, relevance)
    found = {
        "mrr": ranking_metrics.reciprocal_rank(ranked),
        "ndcg": ranking_metrics.ndcg(ranked, k=10),
        "map": ranking_metrics.average_precision(ranked),
    }
    assert found == pytest.approx(slow_metrics(scores, relevance, 10))


@pytest.mark.parametrize("seed", range(4))
def test_auc_is_the_share_of_pairs_in_the_right_order(seed) -> None:
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(0, 6, 40), np.append(rng.integers(0, 2, 38), [0, 1])
    pairs = itertools.product(scores[labels == 1], scores[labels == 0])
    won = [(a > b) + 0.5 * (a == b) for a, b in pairs]
    assert ranking_metrics.auc(scores, labels, np.ones(40)) == pytest.approx(np.mean(won))


def test_queries_without_a_relevant_document_score_0_alone() -> None:
    ranked = ranking_metrics.rank([1, 2], [0, 0])
    assert ranking_metrics.reciprocal_rank(ranked) == 0
    assert ranking_metrics.average_precision(ranked) == 0
    assert ranking_metrics.ndcg(ranked, k=10) == 0


def test_metrics_are_means_over_queries_that_have_a_relevant_document() -> None:
    # Query a: relevant second. b: relevant first. c: none is relevant. Rows are mixed.
    scored = features(("a", "0"), ("b", "2"), ("a", "1"), ("c", "0"), ("b", "0"), ("c", "0"))
    predictions = scores_of(3, 5, 1, 2, 4, 1)
    found = TASK.metrics(Outcome(predictions, scored, ID2LABEL))
    assert [(each.name, each.examples) for each in found] == [
        ("mrr", 2),
        ("ndcg@10", 2),
        ("map", 2),
    ]
    values = [each.value for each in found]
    assert values == pytest.approx([75, 50 * (1 / math.log2(3) + 1), 75])
    assert TASK.decisions(Outcome(predictions, scored)) == [(0,), (1,), (3,)]


def test_single_pairs_are_scored_by_auc() -> None:
    scored = features(("a", "1"), ("b", "0"), ("c", "1"), ("d", "0"))
    predictions = scores_of(3, 2, 1, 0)
    (metric,) = TASK.metrics(Outcome(predictions, scored, ID2LABEL))
    assert (metric.name, metric.value, metric.examples) == ("auc", 75, 4)
    assert TASK.decisions(Outcome(predictions, scored)) is None


@pytest.mark.parametrize(
    ("content", "groups"),
    [
        ("query,document,relevance\na,b,1\na,c,0\nd,e,1\n", ["a", "a", "d"]),
        ("query_id,query,passage,label\n7,a,b,1\n7,a2,c,0\n8,a,e,1\n", ["7", "7", "8"]),
    ],
    ids=["by-query", "by-id"],
)
def test_rows_are_grouped_by_query(write_file, content, groups, monkeypatch) -> None:
    path = write_file("a.csv", content)
    read: list[Path] = []

    def read_once(path: Path) -> Iterator[tuple[int, str]]:
        read.append(path)
        return read_lines(path)

    monkeypatch.setattr(data, "read_lines", read_once)
    dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
    TASK.check_labels(dataset, ID2LABEL)
    TASK.check_metrics(dataset, ID2LABEL)
    assert [each.group for each in dataset.examples] == groups
    assert [each.text_pair for each in dataset.examples] == ["b", "c", "e"]
    assert read == [path]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("query,label\na,1\n", "have one text per row"),
        ("query,document\na,b\n", "known to hold labels"),
        ("query,document,label\na,b,good\n", "Label 'good' is not a finite number"),
        ("query,document,label\na,b,1\na,c,2\n", "All documents of .* are relevant"),
        ("query,document,label\na,b,0\na,c,0\n", "All documents of .* are not relevant"),
    ],
)
def test_unusable_data_are_refused(write_file, content, message) -> None:
    path = write_file("a.csv", content)

    def check() -> None:
        dataset = TASK.read(str(path), columns=Columns(), max_examples=None)
        TASK.check_labels(dataset, ID2LABEL)
        TASK.check_metrics(dataset, ID2LABEL)

    with pytest.raises(DataFileError, match=message):
        check()


def test_a_reranker_is_quantized_evaluated_and_run(save_tiny, tmp_path) -> None:
    rng = random.Random(0)
    auto_class = transformers.AutoModelForSequenceClassification
    checkpoint = save_tiny(
        tmp_path / "float", "bert", auto_class, num_hidden_layers=1, num_labels=1
    )
    rows = [
        {"qid": query, "query": sentence(rng), "document": sentence(rng), "label": index % 4 == 0}
        for query in range(10)
        for index in range(4)
    ]
    # One query has no relevant document.
    for row in rows:
        row["label"] = int(row["label"] and row["qid"] != 3)
    file = tmp_path / "dev.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    report = qdqbert.quantize(
        checkpoint,
        tmp_path / "int8",
        task="reranking",
        calibration_data=file,
        calibration=qdqbert.Calibration(samples=16),
        targets=("onnxruntime",),
        quantizers=qdqbert.Quantizers(quant_disable=True),
        benchmark=False,
    )
    assert report.task == "reranking"
    found = qdqbert.evaluate(tmp_path / "int8", file, reference=checkpoint, allow_leakage=True)
    assert "1 of 10 queries has no relevant document and is not scored." in found.notices
    assert (found.fidelity.decisions, found.fidelity.flips_percent) == (10, 0)
    with qdqbert.load(tmp_path / "int8") as model:
        assert isinstance(model, qdqbert.Reranker)
        scores = model.predict([(row["query"], row["document"]) for row in rows])
    slow = []
    for start in range(0, 40, 4):
        labels = [row["label"] for row in rows[start : start + 4]]
        if any(labels):
            slow.append(slow_metrics(scores[start : start + 4].tolist(), labels, 10))
    expected = [100 * np.mean([each[name] for each in slow]) for name in ("mrr", "ndcg", "map")]
    assert [each.value for each in found.metrics] == pytest.approx(expected)
    # The same folder, scored as a regression.
    plain = qdqbert.evaluate(
        tmp_path / "int8", file, task="text-classification", allow_leakage=True
    )
    assert plain.metrics[0].name == "spearman"


def test_a_model_with_several_outputs_is_no_reranker(checkpoints, quantized, write_file) -> None:
    path = write_file("a.csv", "query,document,label\na,b,1\na,c,0\n")
    for model in (checkpoints("classifier"), quantized("classifier").directory):
        with pytest.raises(UserInputError, match="needs a model with one output"):
            qdqbert.evaluate(model, path, task="reranking")
