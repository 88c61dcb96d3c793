"""A model of transformers.js, which Node and headless Chromium run if there are some.

`apt install nodejs npm` is enough on Linux on x86-64: `browsers` gets Chromium from npm.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import qdqbert
from browsers import SEND, Browser, npm_install
from conftest import TEXTS
from qdqbert.common.errors import UserInputError
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.integrations.exporting.source import open_source
from qdqbert.integrations.exporting.transformers_js import TRANSFORMERS_JS

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
    assert str(Path(embedder.directory).parent) not in card
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
    return npm_install(tmp_path_factory.mktemp("node"), PACKAGE)


Run = Callable[[qdqbert.ExportReport, Mapping[str, str], str], np.ndarray]
"""Runs the code of an export with other texts, and returns the numbers of an expression."""


@pytest.fixture(params=["Node", "Chromium"])
def run(request, node) -> Run:
    if request.param == "Node":
        return functools.partial(run_in_node, node)
    return functools.partial(run_in_chromium, request.getfixturevalue("chromium"), node)


def changed(code: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in code
        code = code.replace(old, new)
    return code


def run_in_node(node: Path, report, changes: Mapping[str, str], result: str) -> np.ndarray:
    """Run the code that the command prints."""
    script = node / "script.mjs"
    shown = f"\nconsole.log('RESULT' + JSON.stringify({result}));\n"
    script.write_text(changed(report.usage, changes) + shown)
    done = subprocess.run(["node", script], cwd=node, capture_output=True, text=True, check=True)
    return np.array(json.loads(done.stdout.partition("RESULT")[2]))


# What a bundler does: find the files of packages. This file of ONNX Runtime has WebAssembly, too.
IMPORTS = {
    "@huggingface/transformers": "@huggingface/transformers/dist/transformers.web.js",
    "onnxruntime-common": "onnxruntime-common/dist/esm/index.js",
    "onnxruntime-web/webgpu": "onnxruntime-web/dist/ort.webgpu.bundle.min.mjs",
}


def run_in_chromium(
    chromium: Browser, node: Path, report, changes: Mapping[str, str], result: str
) -> np.ndarray:
    """Run the code of the README that needs no hub, from a server that has what it names."""
    code = (Path(report.directory) / "README.md").read_text().split("```js\n")[2].split("```")[0]
    models = node / "models"
    shutil.rmtree(models, ignore_errors=True)
    shutil.copytree(report.directory, models / report.name)
    if not (node / "onnxruntime-web").exists():
        (node / "onnxruntime-web").symlink_to("node_modules/onnxruntime-web/dist")
    imports = {name: f"/node_modules/{path}" for name, path in IMPORTS.items()}
    page = node / "page.html"
    page.write_text(
        f'<!DOCTYPE html>\n<script type="importmap">{json.dumps({"imports": imports})}</script>\n'
        f'<script type="module">\n{SEND}\n{changed(code, changes)}\n'
        'const loaded = performance.getEntriesByType("resource").map((each) => each.name);\n'
        f"send({{ result: {result}, loaded, origin }});\n</script>\n"
    )
    sent = chromium.visit(page).sent
    assert "error" not in sent, sent["error"]
    assert [each for each in sent["loaded"] if each.endswith(".wasm")]
    assert all(each.startswith(f"{sent['origin']}/") for each in sent["loaded"])
    return np.array(sent["result"])


EXAMPLES = '["A fine film.", "A dull one."]'


@pytest.mark.slow
def test_embeddings_are_those_of_load(run, embedder, quantized) -> None:
    texts = TEXTS[:12]
    changes = {EXAMPLES: json.dumps(texts)}
    found = run(embedder, changes, "vectors.tolist()")
    with qdqbert.load(quantized("sentence").directory, **SETTINGS) as model:
        expected = model.encode(texts)
    cosines = (found * expected).sum(1)
    assert cosines.min() > 0.9999


@pytest.mark.slow
def test_classes_of_pairs_are_those_of_load(run, of_pairs, tmp_path) -> None:
    folder = of_pairs("classifier")
    report = qdqbert.export(folder, to="transformers-js", output=tmp_path / "pairs")
    first, second = TEXTS[:6], TEXTS[6:12]
    changes = {'["A fine film."]': json.dumps(first), '["The film is good."]': json.dumps(second)}
    found = run(report, changes, "logits.tolist()")
    with qdqbert.load(folder, **SETTINGS) as model:
        pairs = [{"text": a, "text_pair": b} for a, b in zip(first, second, strict=True)]
        answers = model(pairs, top_k=None, function_to_apply="none")
    labels = json.loads((folder / "config.json").read_text())["id2label"].values()
    for logits, scores in zip(found, answers, strict=True):
        expected = {each["label"]: each["score"] for each in scores}
        np.testing.assert_allclose(logits, [expected[name] for name in labels], atol=2e-3)


@pytest.mark.slow
def test_tags_are_those_of_load(run, tiny_artifact, tmp_path) -> None:
    _, folder = tiny_artifact("AutoModelForTokenClassification", num_labels=3)
    report = qdqbert.export(folder, to="transformers-js", output=tmp_path / "tags")
    texts = TEXTS[:6]
    changes = {'["Ada Lovelace lived in London."]': f"{json.dumps(texts)}, {{ ignore_labels: [] }}"}
    found = run(report, changes, "answers.flat().map((each) => each.score)")
    with qdqbert.load(folder, **SETTINGS) as model:
        expected = [each["score"] for tags in model(texts, ignore_labels=[]) for each in tags]
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.slow
def test_answers_are_those_of_load(run, tiny_artifact, tmp_path) -> None:
    _, folder = tiny_artifact("AutoModelForQuestionAnswering")
    report = qdqbert.export(folder, to="transformers-js", output=tmp_path / "answers")
    question, context = TEXTS[0], TEXTS[1]
    changes = {'"Who sat?", "A cat sat on the mat."': f"{json.dumps([question, context])[1:-1]}"}
    found = run(report, changes, "answers.answer")
    with qdqbert.load(folder, **SETTINGS) as model:
        answer = model(question=question, context=context, handle_impossible_answer=False)
    assert str(found).split() == answer["answer"].split()


@pytest.mark.slow
def test_classes_are_those_of_load(run, quantized, tmp_path) -> None:
    folder = quantized("classifier").directory
    report = qdqbert.export(folder, to="transformers-js", output=tmp_path / "classes")
    changes = {EXAMPLES: json.dumps(TEXTS[:8])}
    found = run(report, changes, "answers.map((each) => each.score)")
    with qdqbert.load(folder, **SETTINGS) as model:
        expected = [each["score"] for each in model(TEXTS[:8])]
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outputs", "problem", "result"),
    [(1, None, "scores"), (1, "regression", "logits"), (3, "regression", "logits")],
)
def test_numbers_are_those_of_load(run, tiny_artifact, tmp_path, outputs, problem, result) -> None:
    changes = {"num_labels": outputs, "problem_type": problem}
    _, folder = tiny_artifact("AutoModelForSequenceClassification", **changes)
    report = qdqbert.export(folder, to="transformers-js", output=tmp_path / "numbers")
    found = run(report, {'["A fine film."]': json.dumps(TEXTS[:6])}, f"{result}.tolist()")
    with qdqbert.load(folder, **SETTINGS) as model:
        answers = model(TEXTS[:6], top_k=None)
    expected = [sorted(each, key=lambda one: one["label"]) for each in answers]
    np.testing.assert_allclose(
        found, [[one["score"] for one in each] for each in expected], atol=1e-3
    )
