"""Folders in transformers' pipelines, compared with our own answers."""

from __future__ import annotations

import copy
import logging
import pickle
import re

import numpy as np
import pytest
import torch
import transformers
from transformers.pipelines.text_classification import ClassificationFunction
from transformers.pipelines.token_classification import AggregationStrategy

import qdqbert
from qdqbert.common.errors import UserInputError
from qdqbert.integrations.transformers import pipeline

TEXTS = ["the cat sat on the book", "music in the night", "a dog " * 40]


def close(found, expected) -> None:
    """Compare answers, whose numbers may differ in the last bits."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, dict):
            assert one.keys() >= other.keys()
            close([one[name] for name in other], list(other.values()))
        elif isinstance(other, (list, tuple)):
            close(one, other)
        elif isinstance(other, float):
            assert float(one) == pytest.approx(other, abs=1e-4)
        else:
            assert one == other


@pytest.mark.parametrize(
    ("auto_class", "sizes", "texts", "options"),
    [
        ("AutoModelForSequenceClassification", {"num_labels": 3}, TEXTS, {"top_k": None}),
        ("AutoModelForTokenClassification", {}, TEXTS[:2], {"aggregation_strategy": "simple"}),
        ("AutoModelForMaskedLM", {}, [f"the [MASK] {text}" for text in TEXTS[:2]], {"top_k": 3}),
    ],
)
@pytest.mark.usual("AutoModelForTokenClassification-*")
def test_answers_are_those_of_load(
    tiny_artifact, caplog, auto_class, sizes, texts, options
) -> None:
    folder = tiny_artifact(auto_class, **sizes)[1]
    with caplog.at_level(logging.WARNING, logger="transformers"):
        run = pipeline(folder, engine="onnxruntime", batch_size=2, **options)
        found = run(list(texts))
        for each in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
            close(each(list(texts)), found)
    with qdqbert.load(folder, engine="onnxruntime") as model:
        close(found, model(list(texts), **options))
    assert "not supported" not in caplog.text


def test_a_reranker_scores_pairs(checkpoints, write_file, tmp_path) -> None:
    rows = [
        f"{query},{document},{index % 2}"
        for index, query in enumerate("abcd")
        for document in TEXTS
    ]
    data = write_file("pairs.csv", "\n".join(["query,document,label", *rows]))
    qdqbert.quantize(
        checkpoints("reranker"),
        tmp_path / "int8",
        task="reranking",
        calibration_data=data,
        calibration=qdqbert.Calibration(samples=4),
        targets=("onnxruntime",),
        benchmark=False,
    )
    pairs = [("the cat", text) for text in TEXTS]
    rerank = pipeline(tmp_path / "int8", engine="onnxruntime")
    found = rerank([{"text": query, "text_pair": document} for query, document in pairs])
    with qdqbert.load(tmp_path / "int8", engine="onnxruntime") as model:
        expected = model.predict(pairs, activation="sigmoid")
    np.testing.assert_allclose([each["score"] for each in found], expected, atol=1e-5)


def test_features_are_the_last_hidden_states(tiny_artifact) -> None:
    folder = tiny_artifact("AutoModel")[1]
    extract = pipeline(folder, engine="onnxruntime")
    (found,) = extract([TEXTS[0]])
    ids = extract.tokenizer(TEXTS[0], return_tensors="np")
    with qdqbert.load(folder, engine="onnxruntime") as model:
        expected = model.forward(ids)["last_hidden_state"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_tasks_without_a_pipeline_are_refused(tiny_artifact) -> None:
    reader = tiny_artifact("AutoModelForQuestionAnswering")[1]
    with pytest.raises(UserInputError, match="no pipeline for the task 'question-answering'"):
        pipeline(reader)
    tagger = tiny_artifact("AutoModelForTokenClassification")[1]
    with pytest.raises(UserInputError, match=r"`task='fill-mask'`.*token-classification"):
        pipeline(tagger, "fill-mask")


def test_classes_whose_scores_round_to_one_are_in_the_order_of_their_logits(tiny_artifact) -> None:
    _, folder = tiny_artifact(
        "AutoModelForSequenceClassification",
        num_labels=12,
        problem_type="multi_label_classification",
        initializer_range=5.0,
    )
    with qdqbert.load(folder, engine="onnxruntime") as model:
        expected = model(TEXTS, top_k=None)
    classify = pipeline(folder, engine="onnxruntime")
    assert expected[0][1]["score"] == 1
    close(classify(TEXTS, top_k=None), expected)
    close(classify(TEXTS, top_k=3), [each[:3] for each in expected])
    close(classify(TEXTS), [each[0] for each in expected])


@pytest.fixture(scope="module")
def folders(checkpoints, tiny_artifact):
    heads = ("SequenceClassification", "TokenClassification", "MaskedLM")
    made = {name: tiny_artifact(f"AutoModelFor{name}")[1] for name in heads}
    return {**made, "float": checkpoints("classifier"), "encoder": checkpoints("sentence")}


KINDS = ("SequenceClassification", "TokenClassification", "MaskedLM", "float", "encoder")


@pytest.mark.parametrize("kind", ["float", "encoder"])
@pytest.mark.parametrize("options", [{"precision": "float"}, {"target": "float"}])
def test_options_of_load_are_served(folders, kind, options) -> None:
    run = pipeline(folders[kind], check=False, threads=np.int64(1), **options)
    with qdqbert.load(folders[kind], **options) as model:
        ids = run.tokenizer(TEXTS[0], return_tensors="np")
        expected = next(iter(model.forward(ids).values()))
    found = run.model(**run.tokenizer(TEXTS[0], return_tensors="pt"))[0]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("option", "meant"),
    [("engin", "engine"), ("precison", "precision"), ("batchsize", "batch_size"), ("bogus", None)],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(folders, kind, option, meant) -> None:
    advice = f" Did you mean `{meant}`?" if meant else ""
    message = f"pipeline() got an unexpected keyword argument {option!r}.{advice}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        pipeline(folders[kind], **{option: 1})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "is_obeyed"),
    [
        ({"device": "cpu", "device_map": "auto", "framework": "pt", "use_fast": True}, True),
        ({"device": -1, "dtype": torch.float32, "trust_remote_code": True}, True),
        ({"device": torch.device("cpu"), "torch_dtype": "auto", "model_kwargs": {}}, True),
        ({"device": "cuda:0"}, False),
        ({"device": "gpu"}, False),
        ({"device_map": "cuda"}, False),
        ({"dtype": "float16"}, False),
        ({"revision": "v2"}, False),
        ({"tokenizer": "no-such-folder"}, False),
    ],
)
def test_what_the_engine_decides_is_accepted_or_refused_by_name(
    folders, kind, options, is_obeyed
) -> None:
    if is_obeyed:
        assert pipeline(folders[kind], **options).device == torch.device("cpu")
        return
    [(name, value)] = options.items()
    with pytest.raises(UserInputError, match=f"^`{name}={value!r}`") as caught:
        pipeline(folders[kind], **options)
    assert caught.value.argument == name


def test_arguments_have_the_names_of_transformers(folders) -> None:
    folder = folders["float"]
    expected = pipeline(folder)(TEXTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for run in (
        pipeline("sentiment-analysis", model=folder),
        pipeline(model=folder, task="text-classification"),
        pipeline(folder, tokenizer=tokenizer),
        pipeline(folder, tokenizer=str(folder)),
    ):
        assert run(TEXTS) == expected
    assert pipeline(folders["TokenClassification"], "ner").task == "token-classification"
    with pytest.raises(UserInputError, match="`path` is missing"):
        pipeline(task="ner")


def test_the_encoder_of_a_classifier_makes_features(folders) -> None:
    """As in transformers, for which a head is not needed."""
    found = pipeline(folders["float"], "feature-extraction", precision="float")(TEXTS)
    expected = transformers.pipeline(
        "feature-extraction", str(folders["float"]), dtype=torch.float32, device="cpu"
    )(TEXTS[:2])
    for one, other in zip(found, expected, strict=False):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_names_of_choices_are_taken_in_any_case_as_by_transformers(tiny_artifact) -> None:
    cases = [
        ("TokenClassification", "aggregation_strategy", AggregationStrategy.SIMPLE),
        ("SequenceClassification", "function_to_apply", ClassificationFunction.SIGMOID),
    ]
    for head, name, value in cases:
        folder = tiny_artifact(f"AutoModelFor{head}")[1]
        run = pipeline(folder)
        with qdqbert.load(folder) as model:
            for each in (value.name, value.name.lower(), value):
                close(run(TEXTS[:2], **{name: each}), model(TEXTS[:2], **{name: each}))
