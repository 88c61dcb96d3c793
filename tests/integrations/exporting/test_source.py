"""Which inputs a model to export takes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qdqbert.common.errors import UserInputError
from qdqbert.integrations.exporting.source import open_source
from qdqbert.integrations.exporting.transformers_js import TRANSFORMERS_JS


@pytest.fixture
def source(quantized, tmp_path):
    """Open a copy of a folder whose manifest says something else about pairs."""

    def make(
        name: str,
        *,
        stored: bool | None,
        task: str = "text-classification",
        pairs=False,
        problem: str | None = None,
    ):
        folder = Path(shutil.copytree(quantized(name).directory, tmp_path / "copy"))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "problem_type": problem}))
        path = folder / "quantization.json"
        content = json.loads(path.read_text())
        content["checkpoint"]["task"] = task
        content.pop("takes_pairs", None)
        path.write_text(json.dumps(content | ({} if stored is None else {"takes_pairs": stored})))
        return open_source(
            folder,
            "onnxruntime",
            target=None,
            returns=None,
            default="sentence_embedding",
            name=None,
            pairs=pairs,
        )

    return make


@pytest.mark.parametrize(
    ("name", "stored", "pairs", "expected"),
    [
        ("classifier", None, False, (False, False)),
        ("classifier", False, False, (False, False)),
        ("classifier", True, False, (True, False)),
        ("classifier", None, True, (True, False)),
        ("reranker", None, False, (True, True)),
        ("reranker", False, False, (False, False)),
        ("reranker", True, False, (True, True)),
        ("reranker", False, True, (True, True)),
    ],
)
def test_a_classifier_takes_what_the_manifest_or_the_caller_says(
    source, name, stored, pairs, expected
) -> None:
    opened = source(name, stored=stored, pairs=pairs)
    assert (opened.takes_pairs, opened.is_reranker) == expected


@pytest.mark.parametrize("stored", [None, False, True])
def test_a_regression_takes_single_texts_unless_it_was_quantized_on_pairs(source, stored) -> None:
    opened = source("reranker", stored=stored, problem="regression")
    assert (opened.takes_pairs, opened.is_reranker) == (bool(stored), False)
    assert bool(opened.input_notices) == (stored is None)


@pytest.mark.parametrize(
    ("name", "stored", "problem", "last"),
    [
        ("classifier", False, None, "await run("),
        ("classifier", False, "multi_label_classification", "await run("),
        ("classifier", False, "regression", "const { logits } = await model(inputs);"),
        ("classifier", True, None, "const { logits } = await model(inputs);"),
        ("classifier", True, "multi_label_classification", "const scores = logits.sigmoid();"),
        ("reranker", False, None, "const scores = logits.sigmoid();"),
        ("reranker", True, None, "const scores = logits.sigmoid();"),
        ("reranker", False, "regression", "const { logits } = await model(inputs);"),
        ("reranker", True, "regression", "const { logits } = await model(inputs);"),
    ],
)
def test_the_javascript_ends_with_the_scores_of_load(source, name, stored, problem, last) -> None:
    opened = source(name, stored=stored, problem=problem)
    assert last in TRANSFORMERS_JS.usage(opened, Path("x")).splitlines()[-1]


def test_a_model_for_reranking_takes_pairs_without_a_notice(source) -> None:
    opened = source("reranker", stored=None, task="reranking")
    assert (opened.takes_pairs, opened.is_reranker) == (True, True)
    assert opened.input_notices == []


@pytest.mark.parametrize(
    ("name", "stored", "pairs", "expected"),
    [
        ("classifier", None, False, ["takes single texts, as `quantize` had no data of yours."]),
        ("classifier", None, True, []),
        ("classifier", False, False, []),
        ("reranker", None, False, ["takes pairs of texts, as `quantize` had no data of yours."]),
        ("reranker", False, False, ["takes single texts, as it was quantized on them."]),
        ("reranker", True, False, []),
    ],
)
def test_a_notice_says_what_may_be_wrong(source, name, stored, pairs, expected) -> None:
    notices = source(name, stored=stored, pairs=pairs).input_notices
    assert len(notices) == len(expected)
    assert all(part in notice for part, notice in zip(expected, notices, strict=True))


def test_an_embedder_takes_no_pairs(source) -> None:
    with pytest.raises(
        UserInputError, match=r"`pairs=True` applies to .* model for feature-extraction"
    ) as it:
        source("sentence", stored=None, task="feature-extraction", pairs=True)
    assert it.value.argument == "pairs"
