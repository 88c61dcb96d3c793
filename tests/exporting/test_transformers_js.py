"""A model of transformers.js. Node runs it if it is installed."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import qdqbert
from conftest import TEXTS
from qdqbert.checkpoint.sentence import SentenceHead
from qdqbert.errors import UserInputError
from qdqbert.exporting.source import open_source
from qdqbert.exporting.transformers_js import TRANSFORMERS_JS

PACKAGE = "@huggingface/transformers@4.3.1"
SETTINGS = {"engine": "onnxruntime", "batch_invariant": True}


@pytest.fixture(scope="module")
def embedder(quantized, tmp_path_factory) -> qdqbert.ExportReport:
    output = tmp_path_factory.mktemp("js") / "embedder"
    return qdqbert.export(quantized("sentence").directory, to="transformers-js", output=output)


def test_the_folder_has_what_transformers_js_loads(embedder, quantized) -> None:
    folder = Path(embedder.directory)
    assert embedder.files.keys() == {
        "README.md",
        "config.json",
        "onnx/model_quantized.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    graph = quantized("sentence").directory / "onnxruntime/model.onnx"
    assert (folder / "onnx/model_quantized.onnx").read_bytes() == graph.read_bytes()
    config = json.loads((folder / "config.json").read_text())
    assert config["transformers.js_config"] == {"dtype": "q8"}
    assert config["model_type"] == "bert"
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == embedder.max_length
    # Of all classes, only this one gives the second text of a pair another type.
    assert settings["tokenizer_class"] == "BertTokenizer"
    assert [each.sqnr_db for each in embedder.agreement] == [np.inf]


def test_the_card_has_the_call_with_pooling_and_without_a_folder_of_this_machine(embedder) -> None:
    card = (Path(embedder.directory) / "README.md").read_text()
    assert "library_name: transformers.js" in card
    assert 'pipeline("feature-extraction", "sentence", { dtype: "q8" })' in card
    assert 'pooling: "mean", normalize: true' in card
    assert "localModelPath" not in card
    assert str(Path(embedder.directory).parent) in embedder.usage


def test_prompts_are_in_the_call_and_in_a_notice(with_settings, tmp_path) -> None:
    folder = with_settings(prompts={"query": "find: "}, default_prompt_name="query")
    report = qdqbert.export(folder, to="transformers-js", output=tmp_path / "out")
    assert '["find: A fine film.", "find: A dull one."]' in report.usage
    assert any("'find: '" in notice for notice in report.notices)


def test_a_pooling_that_it_does_not_have_is_refused_unless_the_graph_pools(quantized) -> None:
    folder = quantized("sentence").directory
    options = {"target": None, "default": "last_hidden_state", "name": None}
    states = open_source(folder, "onnxruntime", returns=None, **options)
    largest = SentenceHead(poolings=("max",), normalize=False, max_length=None)
    with pytest.raises(UserInputError, match="no pooling 'max'") as caught:
        TRANSFORMERS_JS.refuse(dataclasses.replace(states, head=largest))
    assert caught.value.argument == "returns"
    pooled = open_source(folder, "onnxruntime", returns="sentence_embedding", **options)
    TRANSFORMERS_JS.refuse(dataclasses.replace(pooled, head=largest))
    code = TRANSFORMERS_JS.usage(pooled, Path("x"))
    assert "const { sentence_embedding } = await model(inputs);" in code


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Path:
    """A folder whose scripts can import transformers.js."""
    if shutil.which("npm") is None:
        pytest.skip("needs Node: apt install nodejs npm")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text("{}")
    command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", PACKAGE]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def run_usage(node: Path, usage: str, changes: dict[str, str], result: str) -> np.ndarray:
    """Run the code of a report with other texts, and return a tensor that it made."""
    for old, new in changes.items():
        assert old in usage
        usage = usage.replace(old, new)
    script = node / "script.mjs"
    shown = f"\nconsole.log('RESULT' + JSON.stringify({result}.tolist()));\n"
    script.write_text(usage + shown)
    done = subprocess.run(["node", script], cwd=node, capture_output=True, text=True, check=True)
    return np.array(json.loads(done.stdout.partition("RESULT")[2]))


EXAMPLES = '["A fine film.", "A dull one."]'


@pytest.mark.slow
def test_embeddings_in_node_are_those_of_load(node, embedder, quantized) -> None:
    texts = TEXTS[:12]
    changes = {EXAMPLES: json.dumps(texts)}
    found = run_usage(node, embedder.usage, changes, "vectors")
    with qdqbert.load(quantized("sentence").directory, **SETTINGS) as model:
        expected = model.encode(texts)
    cosines = (found * expected).sum(1)
    assert cosines.min() > 0.9999


@pytest.mark.slow
def test_classes_of_pairs_in_node_are_those_of_load(node, of_pairs, tmp_path) -> None:
    folder = of_pairs("classifier")
    report = qdqbert.export(folder, to="transformers-js", output=tmp_path / "pairs")
    first, second = TEXTS[:6], TEXTS[6:12]
    changes = {'["A fine film."]': json.dumps(first), '["The film is good."]': json.dumps(second)}
    found = run_usage(node, report.usage, changes, "logits")
    with qdqbert.load(folder, **SETTINGS) as model:
        pairs = [{"text": a, "text_pair": b} for a, b in zip(first, second, strict=True)]
        answers = model(pairs, top_k=None, function_to_apply="none")
    labels = json.loads((folder / "config.json").read_text())["id2label"].values()
    for logits, scores in zip(found, answers, strict=True):
        expected = {each["label"]: each["score"] for each in scores}
        np.testing.assert_allclose(logits, [expected[name] for name in labels], atol=2e-3)


@pytest.mark.slow
def test_classes_in_node_are_those_of_load(node, quantized, tmp_path) -> None:
    folder = quantized("classifier").directory
    report = qdqbert.export(folder, to="transformers-js", output=tmp_path / "classes")
    scores = "\nconst scores = { tolist: () => answers.map((each) => each.score) };"
    changes = {EXAMPLES: json.dumps(TEXTS[:8])}
    found = run_usage(node, report.usage + scores, changes, "scores")
    with qdqbert.load(folder, **SETTINGS) as model:
        expected = [each["score"] for each in model(TEXTS[:8])]
    np.testing.assert_allclose(found, expected, atol=1e-3)
