from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import transformers

from qdqbert.errors import UserInputError
from qdqbert.graph.imported.canonical_form import to_canonical_form
from qdqbert.graph.imported.onnx_file import read_graph
from qdqbert.graph.imported.roles import find_roles, is_linear

LINEARS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
# Embedding tables and linear layers of the head. BERT has a pooler, ELECTRA a projection. RoBERTa's
# table of token types has one row, which is a bias.
REST = {"bert": (3, 2), "roberta": (2, 1), "distilbert": (2, 1), "electra": (3, 3)}
EXPORTS = [
    ("bert", "eager", 17, False),
    ("bert", "eager", 18, True),
    ("roberta", "eager", 14, False),
    ("distilbert", "sdpa", 14, False),
    ("electra", "eager", 11, False),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Block(torch.nn.Module):
    """An encoder layer of plain torch modules, which any exporter handles."""

    def __init__(self, *, pre_norm: bool = False, gated: bool = False, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.pre_norm, self.gated = heads, pre_norm, gated
        self.table = torch.nn.Embedding(40, 16)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)
        self.gate = torch.nn.Linear(16, 32)
        self.one, self.two, self.end = (torch.nn.LayerNorm(16) for _ in range(3))

    def attend(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        split = [
            part(x).view(x.shape[0], -1, self.heads, 4).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        ]
        scores = split[0] @ split[1].transpose(2, 3) / 2
        scores = scores + (1 - mask[:, None, None, :].float()) * -1e4
        context = torch.softmax(scores, -1) @ split[2]
        return self.out(context.transpose(1, 2).reshape(x.shape[0], -1, 16))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.gelu(self.up(x))
        return self.down(inner * self.gate(x) if self.gated else inner)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        if self.pre_norm:
            x = x + self.attend(self.one(x), mask)
            return self.end(x + self.feed(self.two(x)))
        x = self.one(x + self.attend(x, mask))
        return self.two(x + self.feed(x))


@pytest.fixture
def graph_of(tmp_path):
    """Return a function that exports a module and brings it into canonical form."""

    def make(module: torch.nn.Module):
        path = tmp_path / "model.onnx"
        torch.manual_seed(0)
        example = (torch.ones((2, 5), dtype=torch.int64), torch.ones((2, 5), dtype=torch.int64))
        names = ["input_ids", "attention_mask"]
        torch.onnx.export(
            module.eval(),
            example,
            path,
            input_names=names,
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
            opset_version=14,
            dynamo=False,
        )
        return to_canonical_form(read_graph(path))

    return make


@pytest.mark.parametrize("which", EXPORTS, ids=["-".join(map(str, each)) for each in EXPORTS])
def test_every_part_of_every_layer_is_found(exported, which) -> None:
    roles = find_roles(to_canonical_form(read_graph(exported(*which))))
    tables, head = REST[which[0]]
    assert roles.counts() == {
        "layers": 2,
        **dict.fromkeys(LINEARS, 2),
        "scores": 2,
        "context": 2,
        "residual adds": 4,
        "embedding tables": tables,
        "linear layers of the head": head,
    }


@pytest.mark.parametrize("family", REST)
def test_each_linear_has_the_size_that_it_must_have(exported, family) -> None:
    roles = find_roles(to_canonical_form(read_graph(exported(family))))
    sizes = {"intermediate.dense": (32, 64), "output.dense": (64, 32)}
    for layer in roles.layers:
        for linear in layer.linear_layers:
            shape = linear.matmul.inputs[1].const_value.shape.numpy()
            assert tuple(shape) == sizes.get(linear.name, (32, 32))


def test_query_key_and_value_are_distinguished(exported, make_model) -> None:
    model = make_model(
        "bert",
        transformers.AutoModelForSequenceClassification,
        num_hidden_layers=2,
        vocab_size=128,
    )
    weights = dict(model.named_parameters())
    roles = find_roles(to_canonical_form(read_graph(exported("bert"))))
    for index, layer in enumerate(roles.layers):
        for linear in layer.linear_layers:
            expected = weights[f"bert.encoder.layer.{index}.{linear.name}.weight"]
            found = torch.from_numpy(linear.matmul.inputs[1].const_value.numpy().copy())
            torch.testing.assert_close(found, expected.detach().T)


@pytest.mark.parametrize("family", REST)
def test_the_local_input_of_each_residual_add_comes_from_the_linear_layer(exported, family) -> None:
    roles = find_roles(to_canonical_form(read_graph(exported(family))))
    for layer in roles.layers:
        for total, name in zip(
            layer.residual_adds, ("attention.output.dense", "output.dense"), strict=True
        ):
            linear = next(each for each in layer.linear_layers if each.name == name).matmul
            value = total.add.inputs[total.local]
            while not is_linear(value.producer()):
                value = value.producer().inputs[0]
            assert value.producer() is linear


def test_layers_are_in_the_order_of_the_model(exported) -> None:
    roles = find_roles(to_canonical_form(read_graph(exported("bert"))))
    first, second = roles.layers
    assert first.start.producer().op_type == "LayerNormalization"
    assert second.start is not first.start


def test_a_layer_that_normalizes_first_is_found(graph_of) -> None:
    roles = find_roles(graph_of(Block(pre_norm=True)))
    counts = roles.counts()
    assert {name: counts[name] for name in LINEARS} == dict.fromkeys(LINEARS, 1)
    assert counts["residual adds"] == 2
    assert counts["embedding tables"] == 1


def test_a_layer_that_normalizes_afterwards_is_found(graph_of) -> None:
    assert find_roles(graph_of(Block())).counts()["residual adds"] == 2


def test_a_graph_without_attention_is_refused(graph_of) -> None:
    class Bag(Block):
        def forward(self, ids, mask):
            x = self.table(ids) * mask[..., None]
            return torch.softmax(self.down(torch.nn.functional.gelu(self.up(x))).mean(1), -1)

    with pytest.raises(UserInputError, match=r"no attention \(1 Softmax nodes.*not that of BERT"):
        find_roles(graph_of(Bag()))


def test_an_attention_without_a_feed_forward_block_is_refused(graph_of) -> None:
    class Half(Block):
        def forward(self, ids, mask):
            x = self.table(ids)
            return self.one(x + self.attend(x, mask))

    with pytest.raises(
        UserInputError, match="first linear layer of the feed-forward block"
    ) as caught:
        find_roles(graph_of(Half()))
    assert "\n" not in str(caught.value)


def test_an_attention_without_a_residual_is_refused(graph_of) -> None:
    class NoResidual(Block):
        def forward(self, ids, mask):
            x = self.one(self.attend(self.table(ids), mask))
            return self.two(x + self.feed(x))

    with pytest.raises(UserInputError, match="residual add after the attention's output"):
        find_roles(graph_of(NoResidual()))


def test_a_feed_forward_block_without_an_activation_is_refused(graph_of) -> None:
    class Linear(Block):
        def feed(self, x):
            return self.down(self.up(x))

    with pytest.raises(UserInputError, match="activation function"):
        find_roles(graph_of(Linear()))


def test_an_attention_to_something_else_is_refused(graph_of) -> None:
    class Cross(Block):
        def attend(self, x, mask):
            other = self.end(self.gate(x)[..., :16])
            query = self.query(x).view(x.shape[0], -1, 4, 4).transpose(1, 2)
            key, value = (
                part(other).view(x.shape[0], -1, 4, 4).transpose(1, 2)
                for part in (self.key, self.value)
            )
            context = torch.softmax(query @ key.transpose(2, 3), -1) @ value
            return self.out(context.transpose(1, 2).reshape(x.shape[0], -1, 16))

    with pytest.raises(UserInputError, match="none between two matmuls"):
        find_roles(graph_of(Cross()))


def test_linear_layers_of_the_head_are_not_part_of_a_layer(exported) -> None:
    roles = find_roles(to_canonical_form(read_graph(exported("bert"))))
    inside = {linear.matmul for layer in roles.layers for linear in layer.linear_layers}
    assert len(roles.head) == 2
    assert not inside & set(roles.head)
