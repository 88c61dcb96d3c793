"""One ONNX graph that takes strings."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import qdqbert
from conftest import make_texts
from qdqbert.errors import UserInputError

extensions = pytest.importorskip("onnxruntime_extensions", reason="pip install 'qdqbert[export]'")

TEXTS = ["the cat sat on the book", "", "rain", "music in the night " * 30, "naïve 中文 Ünï 한국"]
# The first code points of many scripts, and whole blocks where normalizers do most.
CODES = [
    code
    for codes in (
        range(1, 0x500),
        range(0x1E00, 0x2100),
        range(0xF900, 0xF980),
        range(0x500, 0x30000, 197),
    )
    for code in codes
    if not 0xD800 <= code < 0xE000
]


def session_of(report_or_model: object) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(extensions.get_library_path())
    return onnxruntime.InferenceSession(report_or_model, options)


def run(session, *columns):
    names = ("text", "text_pair")
    inputs = {
        name: np.array(texts, dtype=object) for name, texts in zip(names, columns, strict=False)
    }
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.fixture(scope="module")
def exported(quantized, tmp_path_factory):
    """The report of an exported embedder, and its session."""
    output = tmp_path_factory.mktemp("exported") / "embedder"
    folder = quantized("sentence").directory
    report = qdqbert.export(folder, to="onnx-text", output=output, returns="both")
    return report, session_of(str(output / "model.onnx"))


@pytest.fixture(scope="module")
def tokenizer_session(exported):
    from qdqbert.exporting.onnx_text import _tokenizer_of

    report, _ = exported
    session = session_of(_tokenizer_of(Path(report.directory)))

    def ids_of(*texts):
        (ids,) = run(session, *([text] for text in texts)).values()
        return ids[0].tolist()

    return ids_of


def test_strings_give_the_embeddings_of_the_folder(exported, quantized) -> None:
    report, session = exported
    with qdqbert.load(quantized("sentence").directory, engine="onnxruntime") as model:
        found = run(session, TEXTS)
        np.testing.assert_allclose(found["sentence_embedding"], model.encode(TEXTS), atol=1e-5)
        states = model.encode(TEXTS, output_value="token_embeddings")
    # The longest text of the batch is cut at 32 tokens.
    assert found["last_hidden_state"].shape == (5, 32, 32)
    for row, expected in zip(found["last_hidden_state"], states, strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, atol=1e-4)
    assert [each.output for each in report.agreement] == list(report.outputs)
    assert (report.inputs, report.max_length) == (("text",), 32)


def test_the_usage_of_the_report_runs(exported) -> None:
    report, session = exported
    names = {"texts": TEXTS}
    exec(report.usage.replace("session.run", "found = session.run"), names)
    np.testing.assert_array_equal(names["found"][1], run(session, TEXTS)["sentence_embedding"])


def test_a_batch_is_as_long_as_its_longest_text(exported) -> None:
    _, session = exported
    assert run(session, ["rain", "the cat was"])["last_hidden_state"].shape[1] == 5


def test_no_character_gives_other_tokens(tokenizer_session, quantized, source_of) -> None:
    tokenizer = source_of(quantized("sentence").directory).tokenizer()
    # Six words to a text, so that none is cut at 32 tokens.
    found = []
    for start in range(0, len(CODES), 6):
        codes = CODES[start : start + 6]
        text = " ".join(f"a{chr(code)}b" for code in codes)
        if tokenizer_session(text) != tokenizer.encode(text).ids:
            found.append([hex(code) for code in codes])
    assert not found


@pytest.mark.parametrize("text", ["a" * 100, "a" * 101, f"the {'a' * 150}.", "x\ue000y", "Straße"])
def test_long_and_unknown_words_are_unknown(text, tokenizer_session, quantized, source_of) -> None:
    tokenizer = source_of(quantized("sentence").directory).tokenizer()
    assert tokenizer_session(text) == tokenizer.encode(text).ids


def test_pairs_are_cut_as_the_library_cuts_them(of_pairs, tmp_path, source_of) -> None:
    from qdqbert.exporting.onnx_text import _tokenizer_of

    folder = of_pairs("reranker")
    report = qdqbert.export(folder, to="onnx-text", output=tmp_path / "out")
    session = session_of(_tokenizer_of(tmp_path / "out"))
    tokenizer = source_of(folder).tokenizer()
    # With 64 tokens and 3 special ones, 61 are left: 30 and 31 if both are cut.
    for first, second in itertools.product((0, 1, 29, 30, 31, 32, 61, 80), repeat=2):
        pair = ("rain " * first, "dog " * second)
        (ids,) = run(session, *([text] for text in pair)).values()
        assert ids[0].tolist() == tokenizer.encode(pair).ids, (first, second)
    found = run(session_of(str(tmp_path / "out" / "model.onnx")), ["rain"], ["the dog"])
    with qdqbert.load(folder, engine="onnxruntime") as model:
        expected = model.predict(("rain", "the dog"), activation="none")
    np.testing.assert_allclose(found["logits"], [[expected]], atol=1e-5)
    assert report.inputs == ("text", "text_pair")


def test_a_classifier_of_pairs_takes_two_inputs(of_pairs, logits_of, tmp_path) -> None:
    folder = of_pairs("classifier")
    report = qdqbert.export(folder, to="onnx-text", output=tmp_path / "out")
    names = {"texts": TEXTS, "text_pairs": TEXTS[::-1]}
    exec(report.usage.replace("session.run", "(found,) = session.run"), names)
    expected = logits_of(folder, list(zip(TEXTS, TEXTS[::-1], strict=True)))
    assert expected.shape == (5, 3)
    np.testing.assert_allclose(names["found"], expected, atol=1e-5)
    assert report.inputs == ("text", "text_pair")


def test_a_score_of_single_texts_takes_one_input(quantized, logits_of, tmp_path) -> None:
    folder = quantized("reranker").directory
    report = qdqbert.export(folder, to="onnx-text", output=tmp_path / "out")
    found = run(session_of(f"{report.directory}/model.onnx"), TEXTS)
    np.testing.assert_allclose(found["logits"], logits_of(folder, TEXTS), atol=1e-5)
    assert (report.inputs, found["logits"].shape) == (("text",), (5, 1))


def test_prompt_and_dimensions_of_the_folder_are_in_the_graph(with_settings, tmp_path) -> None:
    folder = with_settings(prompts={"q": "the dog "}, default_prompt_name="q", truncate_dim=8)
    report = qdqbert.export(folder, to="onnx-text", output=tmp_path / "out")
    texts = make_texts(4, seed=3)
    found = run(session_of(f"{report.directory}/model.onnx"), texts)
    with qdqbert.load(folder, engine="onnxruntime") as model:
        expected = model.encode(texts)
    assert expected.shape == (4, 8)
    np.testing.assert_allclose(found["sentence_embedding"], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["bpe", "bpe with a space before", "unigram"])
def test_other_kinds_of_tokenizers_are_exported(kind, with_tokenizer, tmp_path) -> None:
    folder = with_tokenizer(kind)
    report = qdqbert.export(folder, to="onnx-text", output=tmp_path / "out")
    found = run(session_of(f"{report.directory}/model.onnx"), TEXTS)
    with qdqbert.load(folder, engine="onnxruntime") as model:
        states = model.encode(TEXTS, output_value="token_embeddings")
    for row, expected in zip(found["last_hidden_state"], states, strict=True):
        np.testing.assert_allclose(row[: len(expected)], expected, atol=1e-4)
    assert "says nothing about its pooling" in report.notices[-1]


def test_a_tokenizer_that_the_operators_get_wrong_is_refused(with_tokenizer, tmp_path) -> None:
    with pytest.raises(UserInputError, match=r"gives other tokens .* wide and ligature") as caught:
        qdqbert.export(with_tokenizer("unigram with NFKC"), to="onnx-text", output=tmp_path / "out")
    assert caught.value.argument == "to"
    assert list(tmp_path.iterdir()) == []
