from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from qdqbert.calibration.reference.body import to_numpy
from qdqbert.common.choices import POOLING_MODES
from qdqbert.encoders.checkpoint.sentence import SentenceHead
from qdqbert.encoders.families import FAMILIES
from qdqbert.graphs.writer import make_graph
from qdqbert.training.body import GraphBody, pool

POOLINGS = (
    *((each,) for each in POOLING_MODES),
    ("weightedmean", "cls"),
    ("lasttoken", "max", "mean"),
)
# float32 sums in a different order, over at most two layers.
FLOAT_TOLERANCE = 2e-5

# CamemBERT and XLM-RoBERTa have the modules of RoBERTa.
LAYOUTS = [
    name
    for name, each in FAMILIES.items()
    if each.training and name not in ("camembert", "xlm-roberta")
]


class TableEncoder(nn.Module):
    """An encoder whose token states are rows of an embedding table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 6)

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        del attention_mask, token_type_ids
        return {"last_hidden_state": self.table(input_ids)}


def random_inputs(input_names, shape, *, seed=0) -> dict[str, np.ndarray]:
    """Return random tokens. Each feature after the first has one more [PAD]."""
    rng = np.random.default_rng(seed)
    inputs = {name: np.zeros(shape, np.int64) for name in input_names}
    inputs["input_ids"] += rng.integers(5, 300, shape)
    for index in range(shape[0]):
        length = max(1, shape[1] - index)
        inputs["attention_mask"][index, :length] = 1
    return inputs


def pool_with_numpy(states, mask, head: SentenceHead) -> np.ndarray:
    """Pool each feature separately, over its tokens without padding."""
    vectors = []
    for tokens, keep in zip(states, mask.astype(bool), strict=True):
        text = tokens[keep].astype(np.float64)
        ways = {
            "mean": text.mean(axis=0),
            "cls": text[0],
            "max": text.max(axis=0),
            "mean_sqrt_len_tokens": text.sum(axis=0) / np.sqrt(len(text)),
            "weightedmean": np.average(text, axis=0, weights=np.arange(len(text)) + 1),
            "lasttoken": text[-1],
        }
        vectors.append(np.concatenate([ways[each] for each in head.poolings]))
    pooled = np.stack(vectors)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True) if head.normalize else pooled


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (2, 5), (3, 64), (9, 2)], ids=str)
@pytest.mark.parametrize("family", LAYOUTS)
def test_the_float_graph_agrees_with_pytorch_at_every_shape(
    prepared, run_plainly, family, shape
) -> None:
    each = prepared(family)
    inputs = random_inputs(each.checkpoint.input_names, shape)
    with torch.inference_mode():
        states = each.body(**{k: torch.from_numpy(v) for k, v in inputs.items()})
    expected = to_numpy(states, each.body.output_names)
    actual = run_plainly(make_graph(each.encoder), inputs)
    assert list(actual) == ["last_hidden_state"]
    # States of [PAD] have no meaning.
    is_text = inputs["attention_mask"].astype(bool)
    pair = (each["last_hidden_state"][is_text] for each in (actual, expected))
    np.testing.assert_allclose(*pair, atol=FLOAT_TOLERANCE)


@pytest.mark.parametrize("family", LAYOUTS)
def test_the_states_of_text_are_those_of_transformers(prepared, checkpoints, family) -> None:
    each = prepared(family)
    original = transformers.AutoModel.from_pretrained(checkpoints(family)).eval()
    arrays = random_inputs(each.checkpoint.input_names, (4, 24))
    inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
    inputs["attention_mask"][3, 5:] = 0
    with torch.inference_mode():
        expected = original(**inputs).last_hidden_state
        states = each.body(**inputs)[0]
    text = inputs["attention_mask"].bool()
    torch.testing.assert_close(states[text], expected[text], atol=FLOAT_TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("bert", {"input_ids", "attention_mask", "token_type_ids"}, ["last_hidden_state"]),
        ("roberta", {"input_ids", "attention_mask"}, ["last_hidden_state"]),
        (
            "sentence",
            {"input_ids", "attention_mask", "token_type_ids"},
            ["last_hidden_state", "sentence_embedding"],
        ),
    ],
    ids=["encoder", "encoder-without-segments", "sentence-transformers"],
)
def test_inputs_and_outputs_are_named_as_in_transformers(prepared, name, inputs, outputs) -> None:
    graph = make_graph(prepared(name).encoder).graph
    assert {value.name for value in graph.inputs} == inputs
    assert [value.name for value in graph.outputs] == outputs
    for value in graph.inputs:
        assert [str(size) for size in value.shape] == ["batch", "sequence"]


@pytest.mark.parametrize(
    ("poolings", "normalize"), [*((each, False) for each in POOLINGS), (("mean",), True)]
)
def test_pooling_agrees_with_numpy(poolings, normalize) -> None:
    torch.manual_seed(0)
    head = SentenceHead(poolings=poolings, normalize=normalize, max_length=None)
    model = TableEncoder().eval()
    inputs = random_inputs(("input_ids", "attention_mask"), (4, 6))
    inputs["input_ids"] %= 50
    mask = inputs["attention_mask"]
    states = model(torch.from_numpy(inputs["input_ids"]), None)["last_hidden_state"].detach()
    expected = pool_with_numpy(states.numpy(), mask, head)

    pooled = pool(states, torch.from_numpy(mask), head, head.last_steps).numpy()
    # At most six float32 values are summed.
    np.testing.assert_allclose(pooled, expected, atol=1e-6)


def test_a_sentence_embedding_equals_that_of_sentence_transformers(
    prepared, checkpoints, run_plainly
) -> None:
    library = pytest.importorskip("sentence_transformers")
    each = prepared("sentence")
    texts = ["the cat sat on the book", "rain", "she will be home before the night, in the city"]
    expected = library.SentenceTransformer(str(checkpoints("sentence")), device="cpu").encode(texts)
    inputs = dict(each.checkpoint.tokenizer(texts, padding=True, return_tensors="np"))
    inputs = {name: array.astype(np.int64) for name, array in inputs.items()}
    with torch.inference_mode():
        outputs = each.body(**{k: torch.from_numpy(v) for k, v in inputs.items()})
    np.testing.assert_allclose(outputs[1].numpy(), expected, atol=FLOAT_TOLERANCE)
    actual = run_plainly(make_graph(each.encoder), inputs)["sentence_embedding"]
    np.testing.assert_allclose(actual, expected, atol=FLOAT_TOLERANCE)


@pytest.mark.parametrize("pooling", [each for each in POOLING_MODES if each != "mean"])
def test_each_pooling_agrees_with_sentence_transformers(
    prepared, checkpoints, tmp_path, pooling
) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = shutil.copytree(checkpoints("sentence"), tmp_path / "copy")
    config = {"word_embedding_dimension": 32, "pooling_mode": pooling}
    if int(library.__version__.split(".")[0]) < 6:
        pytest.skip("sentence-transformers before 6 has no `pooling_mode`")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    each = prepared("sentence")
    head = SentenceHead(poolings=(pooling,), normalize=True, max_length=None)
    body = GraphBody(
        each.checkpoint.model,
        task="feature-extraction",
        head=head,
        steps=("normalize",),
    )
    texts = ["the cat sat on the book", "rain"]
    expected = library.SentenceTransformer(str(folder), device="cpu").encode(texts)
    with torch.inference_mode():
        outputs = body(**each.checkpoint.tokenizer(texts, padding=True, return_tensors="pt"))
    np.testing.assert_allclose(outputs[1].numpy(), expected, atol=FLOAT_TOLERANCE)
