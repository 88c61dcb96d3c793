"""A model repository of Triton. Its tokenizer runs here with a stand-in for Triton's module."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.integrations.exporting.triton import Name, text_proto
from qdqbert.integrations.exporting.triton_tokenizer import TextTokenizer

TEXTS = ["the cat sat on the book", "", "naïve 中文 😀 \x07", "music in the night " * 30]


@pytest.fixture(scope="module")
def repository(quantized, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("repository") / "models"
    folder = quantized("sentence").directory
    report = qdqbert.export(folder, to="triton", output=output, name="embedder")
    assert report.usage == f"tritonserver --model-repository {output}"
    return output


@dataclasses.dataclass
class Tensor:
    """Triton's tensor."""

    name: str
    values: Any

    def as_numpy(self) -> Any:
        return self.values


def python_model(folder: Path, monkeypatch) -> Any:
    """Load the model.py of a folder as Triton's Python backend does."""
    triton = types.ModuleType("triton_python_backend_utils")
    triton.Tensor = Tensor
    triton.InferenceResponse = lambda output_tensors: output_tensors
    triton.get_input_tensor_by_name = lambda request, name: request.get(name)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", triton)
    spec = importlib.util.spec_from_file_location("model", folder / "1" / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TritonPythonModel()


def request_of(texts: list[str]) -> dict[str, Tensor]:
    column = np.array([[text.encode()] for text in texts], dtype=object)
    return {"text": Tensor("text", column)}


def test_the_repository_has_three_models(repository) -> None:
    files = {path.relative_to(repository).as_posix() for path in repository.rglob("*.*")}
    assert files == {
        "export.json",
        *(f"embedder{suffix}/config.pbtxt" for suffix in ("", "_tokenizer", "_model")),
        *("embedder_tokenizer/1/model.py", "embedder_tokenizer/1/tokenizer.json"),
        *("embedder_model/1/model.onnx", "embedder/1/.keep"),
    }


def test_the_tokenizer_of_an_earlier_folder_does_not_cut(quantized, tmp_path) -> None:
    folder = tmp_path / "earlier"
    shutil.copytree(quantized("sentence").directory, folder)
    stored = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stored.enable_truncation(4)
    stored.save(str(folder / "tokenizer.json"))
    (folder / "SHA256SUMS").unlink()
    qdqbert.export(folder, to="triton", output=tmp_path / "models", name="embedder")
    path = tmp_path / "models" / "embedder_tokenizer" / "1" / "tokenizer.json"
    assert json.loads(path.read_text())["truncation"] is None


def test_both_steps_give_the_embeddings_of_the_folder(repository, quantized, monkeypatch) -> None:
    tokenizer = python_model(repository / "embedder_tokenizer", monkeypatch)
    parameters = {"max_length": "32", "pad_to_multiple_of": "16", "pad_input_ids": "0"}
    parameters |= {"pad_attention_mask": "0", "pad_token_type_ids": "0"}
    config = {
        "input": [{"name": "text"}],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }
    tokenizer.initialize({"model_config": json.dumps(config)})
    # Two requests that Triton hands over together.
    responses = tokenizer.execute([request_of(TEXTS), request_of(["rain"])])
    first, second = ({each.name: each.values for each in response} for response in responses)
    assert first["input_ids"].shape == (4, 32)
    assert second["input_ids"].shape == (1, 16)
    assert first["input_ids"].dtype == np.int64
    session = onnxruntime.InferenceSession(str(repository / "embedder_model/1/model.onnx"))
    (found,) = session.run(["sentence_embedding"], first)
    with qdqbert.load(quantized("sentence").directory, engine="onnxruntime") as model:
        np.testing.assert_allclose(found, model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("is_pair", [True, False])
@pytest.mark.usual("False")
def test_pairs_and_single_texts_give_the_logits_of_the_folder(
    is_pair, of_pairs, quantized, logits_of, tmp_path, monkeypatch
) -> None:
    folder = of_pairs("classifier") if is_pair else quantized("reranker").directory
    report = qdqbert.export(folder, to="triton", output=tmp_path, name="m", overwrite=True)
    columns = [TEXTS, TEXTS[::-1]] if is_pair else [TEXTS]
    assert report.inputs == ("text", "text_pair")[: len(columns)]
    tokenizer = python_model(tmp_path / "m_tokenizer", monkeypatch)
    config = (tmp_path / "m_tokenizer" / "config.pbtxt").read_text()
    assert ('name: "text_pair"' in config) is is_pair
    parameters = {"max_length": "64", "pad_input_ids": "0"}
    parameters |= {"pad_attention_mask": "0", "pad_token_type_ids": "0"}
    content = {
        "input": [{"name": name} for name in report.inputs],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }
    tokenizer.initialize({"model_config": json.dumps(content)})
    request = {
        name: Tensor(name, np.array([[text.encode()] for text in texts], dtype=object))
        for name, texts in zip(report.inputs, columns, strict=True)
    }
    (response,) = tokenizer.execute([request])
    session = onnxruntime.InferenceSession(str(tmp_path / "m_model/1/model.onnx"))
    (found,) = session.run(["logits"], {each.name: each.values for each in response})
    items = list(zip(*columns, strict=True)) if is_pair else TEXTS
    np.testing.assert_allclose(found, logits_of(folder, items), atol=1e-5)


def run_repository(folder: Path, name: str, columns: dict[str, list[str]], monkeypatch) -> Any:
    """Run both steps with the parameters that config.pbtxt has; return outputs by name."""
    config = (folder / f"{name}_tokenizer" / "config.pbtxt").read_text()
    keys = re.findall(r'key: "(\w+)"\s+value \{\s+string_value: "([^"]*)"', config)
    content = {
        "input": [{"name": each} for each in columns],
        "parameters": {key: {"string_value": value} for key, value in keys},
    }
    tokenizer = python_model(folder / f"{name}_tokenizer", monkeypatch)
    tokenizer.initialize({"model_config": json.dumps(content)})
    request = {
        each: Tensor(each, np.array([[text.encode()] for text in texts], dtype=object))
        for each, texts in columns.items()
    }
    (response,) = tokenizer.execute([request])
    given = {each.name: each.values for each in response}
    session = onnxruntime.InferenceSession(str(folder / f"{name}_model/1/model.onnx"))
    taken = {each.name: given[each.name] for each in session.get_inputs()}
    names = [each.name for each in session.get_outputs()]
    return {**given, **dict(zip(names, session.run(names, taken), strict=True))}


def test_tokens_are_tagged_at_their_places_in_the_text(
    tiny_artifact, tmp_path, monkeypatch
) -> None:
    _, folder = tiny_artifact("AutoModelForTokenClassification", num_labels=3)
    report = qdqbert.export(folder, to="triton", output=tmp_path / "tags", name="m")
    assert report.inputs == ("text",)
    assert any("`offsets`" in each for each in report.notices)
    ensemble = (tmp_path / "tags" / "m" / "config.pbtxt").read_text()
    assert ensemble.count('name: "offsets"') == 1
    texts = ["the cat sat, naïve 中文 😀", "rain", ""]
    found = run_repository(tmp_path / "tags", "m", {"text": texts}, monkeypatch)
    with qdqbert.load(folder) as model:
        for row, expected in enumerate(model(texts, ignore_labels=[])):
            places = np.flatnonzero(found["offsets"][row, :, 0] >= 0)
            assert [
                (model.labels[found["logits"][row, each].argmax()], *found["offsets"][row, each])
                for each in places
            ] == [(each["entity"], each["start"], each["end"]) for each in expected]


def test_answers_are_at_their_places_in_the_context(tiny_artifact, tmp_path, monkeypatch) -> None:
    _, folder = tiny_artifact("AutoModelForQuestionAnswering")
    report = qdqbert.export(folder, to="triton", output=tmp_path / "answers", name="m")
    assert report.inputs == ("text", "text_pair")
    question, context = "who sat on the book", "the cat sat on the book in the night"
    columns = {"text": [question], "text_pair": [context]}
    found = run_repository(tmp_path / "answers", "m", columns, monkeypatch)
    offsets = found["offsets"][0]
    is_context = offsets[:, 0] >= 0
    scores = found["start_logits"][0][:, None] + found["end_logits"][0]
    scores[~(is_context[:, None] & is_context)] = -np.inf
    first, last = np.unravel_index(np.argmax(np.triu(np.exp(scores))), scores.shape)
    with qdqbert.load(folder) as model:
        answer = model(question=question, context=context, handle_impossible_answer=False)
    assert (offsets[first, 0], offsets[last, 1]) == (answer["start"], answer["end"])


def test_the_shipped_tokenizer_needs_no_package_of_ours(repository) -> None:
    text = (repository / "embedder_tokenizer" / "1" / "model.py").read_text()
    assert "import qdqbert" not in text
    assert "from qdqbert" not in text


def test_a_prompt_is_put_before_each_text(quantized) -> None:
    folder = quantized("sentence").directory
    padding = {"pad_input_ids": "0", "pad_attention_mask": "0"}
    plain = TextTokenizer(folder, {"max_length": "32", **padding})
    prompted = TextTokenizer(folder, {"max_length": "32", "prompt": "the dog ", **padding})
    expected = plain(["the dog rain"])["input_ids"]
    np.testing.assert_array_equal(prompted(["rain"])["input_ids"], expected)
    assert set(prompted(["rain"])) == {"input_ids", "attention_mask"}


def test_no_width_exceeds_the_limit(quantized) -> None:
    padding = {"pad_input_ids": "0", "pad_to_multiple_of": "16"}
    tokenize = TextTokenizer(quantized("sentence").directory, {"max_length": "20", **padding})
    assert tokenize(["rain " * 40])["input_ids"].shape == (1, 20)


def test_messages_are_written_in_text_format() -> None:
    written = text_proto(
        {"name": 'a "b"\n', "dims": [-1, 3], "kind": Name("KIND_CPU"), "step": [{"x": 1}, {"x": 2}]}
    )
    assert written == (
        'name: "a \\042b\\042\\012"\ndims: [-1, 3]\nkind: KIND_CPU\n'
        "step {\n  x: 1\n}\nstep {\n  x: 2\n}\n"
    )


def test_dimensions_that_the_graph_does_not_cut_are_refused(with_settings, tmp_path) -> None:
    with pytest.raises(UserInputError, match="keeps 8 dimensions"):
        qdqbert.export(with_settings(truncate_dim=8), to="triton", output=tmp_path / "out")


@pytest.mark.slow
def test_triton_reads_the_configurations(repository) -> None:
    spec = importlib.util.find_spec("tritonclient")
    if spec is None:
        pytest.skip("tritonclient is not installed: make test-slow")
    # The package itself imports a client that needs other versions of its dependencies than ours.
    path = Path(spec.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    loaded = importlib.util.spec_from_file_location("model_config_pb2", path)
    messages = importlib.util.module_from_spec(loaded)
    with warnings.catch_warnings():
        # Of code that was generated for the major version of protobuf before ours.
        warnings.simplefilter("ignore")
        loaded.loader.exec_module(messages)
    from google.protobuf import text_format

    configs = {
        path.parent.name: text_format.Parse(path.read_text(), messages.ModelConfig())
        for path in repository.glob("*/config.pbtxt")
    }
    assert {name: each.name for name, each in configs.items()} == {name: name for name in configs}
    ensemble = configs["embedder"]
    assert [step.model_name for step in ensemble.ensemble_scheduling.step] == [
        "embedder_tokenizer",
        "embedder_model",
    ]
    for step in ensemble.ensemble_scheduling.step:
        model = configs[step.model_name]
        assert set(step.input_map) == {each.name for each in model.input}
        assert set(step.output_map) == {each.name for each in model.output}
    model = configs["embedder_model"]
    assert (model.backend, model.max_batch_size) == ("onnxruntime", 64)
    assert model.HasField("dynamic_batching")
    (output,) = model.output
    assert (output.name, list(output.dims)) == ("sentence_embedding", [32])
    assert configs["embedder_tokenizer"].parameters["max_length"].string_value == "32"
