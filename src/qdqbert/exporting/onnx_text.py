"""The format "onnx-text": one ONNX graph that takes strings.

DIR/model.onnx        the graph; it needs the custom operators of onnxruntime-extensions
DIR/config.json       names of classes and other settings

Inputs: `text`, and `text_pair` for models of pairs, each `(batch,)` of strings. A loop in the graph
turns each text into ids, cuts them, and pads them to the model's limit. After the loop, the ids are
cut to the longest of the batch.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import onnxruntime_extensions
import tokenizers
from numpy.typing import NDArray

from qdqbert.artifact import weights_of
from qdqbert.errors import UserInputError
from qdqbert.exporting.byte_pairs import byte_pairs, unigrams
from qdqbert.exporting.checks import (
    Agreement,
    Item,
    check_results,
    check_tokens,
    expected_results,
)
from qdqbert.exporting.formats import Format
from qdqbert.exporting.nodes import EXTENSIONS, AddTokenizer, Nodes
from qdqbert.exporting.samples import check_pairs, check_texts
from qdqbert.exporting.source import SENTENCE_EMBEDDING, Source
from qdqbert.exporting.word_pieces import word_pieces
from qdqbert.graph.edit import keep_outputs, tidy
from qdqbert.inference.tokenizer import FolderTokenizer

MODEL = "model.onnx"
TEXT, TEXT_PAIR = "text", "text_pair"

# Names of the model's inputs get this suffix, where they are made of texts.
_OF_TEXT = "_of_text"
_IDS = f"input_ids{_OF_TEXT}"

# RegexFullMatch and StringConcat.
_LEAST_OPSET = 20
# What makes the function that adds the nodes of a tokenizer to a graph, by the tokenizer's model.
_TOKENIZERS: Mapping[str, Callable[[tokenizers.Tokenizer], AddTokenizer]] = {
    "WordPiece": word_pieces,
    "BPE": byte_pairs,
    "Unigram": unigrams,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Form:
    """The special tokens around one text, or around the texts of a pair.

    Attributes:
        ids: Special tokens before the first text, after it, and after the second one.
        types: Value of `token_type_ids` of each text.
    """

    ids: Sequence[Sequence[int]]
    types: Sequence[int]

    @property
    def count(self) -> int:
        """Number of special tokens."""
        return sum(map(len, self.ids))


def _form_of(tokenizer: FolderTokenizer, *, pairs: bool) -> _Form:
    """Return what a tokenizer adds, from what it makes of a short text or pair."""
    whole = tokenizer.cutting(None)
    encoding = whole.encode(("a", "a") if pairs else "a")
    parts: list[list[int]] = [[]]
    types = []
    last = None
    for token, sequence, kind in zip(
        encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True
    ):
        if sequence is None:
            parts[-1].append(token)
        elif sequence != last:
            parts.append([])
            types.append(kind)
        last = sequence
    return _Form(ids=parts, types=types)


def _write(source: Source, folder: Path) -> None:
    model = ir.load(source.graph)
    if model.opset_imports[""] < _LEAST_OPSET:
        raise UserInputError(
            f"The graph has opset {model.opset_imports['']}, and a graph with strings needs "
            f"{_LEAST_OPSET}. Choose another format in `to`.",
            argument="to",
        )
    keep_outputs(model, source.outputs)
    numbers = itertools.count()
    _shorten_embeddings(model, source, Nodes(numbers))
    _take_text(model, source, Nodes(numbers))
    model.opset_imports[EXTENSIONS] = 1
    path = folder / MODEL
    has_external = weights_of(source.graph).exists()
    ir.save(tidy(model), path, external_data=weights_of(path).name if has_external else None)
    # Without shape inference, which does not know the operators of onnxruntime-extensions.
    onnx.checker.check_model(str(path))
    shutil.copyfile(source.artifact.directory / "config.json", folder / "config.json")


def _shorten_embeddings(model: ir.Model, source: Source, nodes: Nodes) -> None:
    """Keep the leading dimensions of embeddings, if the folder's settings say so."""
    count = source.settings.truncate_dim
    named = {value.name: value for value in model.graph.outputs}
    value = named.get(SENTENCE_EMBEDDING)
    if count is None or value is None:
        return
    short = nodes.slice(value, nodes.integers(0), nodes.integers(count), axis=1)
    model.graph.extend(nodes.nodes)
    value.name, short.name = f"{SENTENCE_EMBEDDING}_whole", SENTENCE_EMBEDDING
    short.type, short.shape = value.type, ir.Shape(["batch", count])
    model.graph.outputs[list(model.graph.outputs).index(value)] = short


def _take_text(model: ir.Model, source: Source, nodes: Nodes) -> None:
    """Replace the inputs of a graph with strings."""
    texts = _text_inputs(source)
    made = _model_inputs(nodes, texts, source)
    old = list(model.graph.inputs)
    for value in old:
        value.replace_all_uses_with(made[str(value.name)])
    model.graph.inputs.clear()
    model.graph.inputs.extend(texts)
    for name, value in made.items():
        value.name = f"{name}{_OF_TEXT}"
    model.graph.insert_before(model.graph[0], nodes.nodes)


def _text_inputs(source: Source) -> list[ir.Value]:
    kind = ir.TensorType(ir.DataType.STRING)
    return [ir.Value(name=name, type=kind, shape=ir.Shape(["batch"])) for name in _inputs(source)]


def _model_inputs(nodes: Nodes, texts: Sequence[ir.Value], source: Source) -> dict[str, ir.Value]:
    """Add the nodes that make the inputs of the model, each `(batch, longest)`, int64."""
    tokenizer = source.tokenizer()
    batch = nodes.add("Shape", texts[0])
    count = nodes.add("Squeeze", batch, nodes.integers(0))
    body = _loop_body(nodes, texts, source, tokenizer)
    always = nodes.add("Cast", nodes.add("Constant", value_int=1), to=ir.DataType.BOOL)
    ids, types, lengths = nodes.add_all("Loop", count, always, count=3, body=body)
    longest = nodes.add("ReduceMax", lengths, nodes.integers(0), keepdims=1)
    start = nodes.integers(0)
    positions = nodes.add(
        "Range",
        nodes.add("Constant", value_int=0),
        nodes.add("Squeeze", longest, nodes.integers(0)),
        nodes.add("Constant", value_int=1),
    )
    column = nodes.add("Unsqueeze", lengths, nodes.integers(1))
    mask = nodes.add("Cast", nodes.add("Less", positions, column), to=ir.DataType.INT64)
    made = {
        "input_ids": nodes.slice(ids, start, longest, axis=1),
        "attention_mask": mask,
        "token_type_ids": nodes.slice(types, start, longest, axis=1),
    }
    return {name: made[name] for name in source.artifact.input_names}


def _loop_body(
    nodes: Nodes, texts: Sequence[ir.Value], source: Source, tokenizer: FolderTokenizer
) -> ir.Graph:
    """Return the graph that tokenizes one text, or one pair.

    Its outputs are the ids and the segments, `(max_length,)` each, and the number of tokens.
    """
    inner = nodes.nested()
    index, condition = inner.value(), inner.value()
    index.type, index.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
    condition.type, condition.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    add_tokenizer = _TOKENIZERS[type(tokenizer.backend.model).__name__](tokenizer.backend)
    parts = []
    for text in texts:
        one = inner.add("Reshape", inner.add("Gather", text, index), inner.integers(1))
        if source.prompt:
            one = inner.add("StringConcat", inner.strings(source.prompt), one)
        parts.append(add_tokenizer(inner, one))
    form = _form_of(tokenizer, pairs=len(texts) == 2)
    limit = source.artifact.max_length
    parts = _cut(inner, parts, limit - form.count)
    ids = inner.add("Concat", *_with_special(inner, parts, form), axis=0)
    types = inner.add("Concat", *_segments(inner, parts, form), axis=0)
    length = inner.add("Shape", ids)
    missing = inner.add("Sub", inner.integers(limit), length)
    pads = inner.add("Concat", inner.integers(0), missing, axis=0)
    outputs = [
        inner.add("Identity", condition),
        *(
            inner.add("Pad", value, pads, inner.add("Constant", value_int=tokenizer.padding[name]))
            for name, value in (("input_ids", ids), ("token_type_ids", types))
        ),
        inner.add("Squeeze", length, inner.integers(0)),
    ]
    types_of = (ir.DataType.BOOL, *[ir.DataType.INT64] * 3)
    shapes: Sequence[list[int]] = ([], [limit], [limit], [])
    for output, dtype, shape in zip(outputs, types_of, shapes, strict=True):
        output.type, output.shape = ir.TensorType(dtype), ir.Shape(shape)
    return ir.Graph([index, condition], outputs, nodes=inner.nodes, name="one_text")


def _with_special(nodes: Nodes, parts: Sequence[ir.Value], form: _Form) -> list[ir.Value]:
    values = [nodes.integers(*form.ids[0])] if form.ids[0] else []
    for part, special in zip(parts, form.ids[1:], strict=True):
        values += [part, *([nodes.integers(*special)] if special else [])]
    return values


def _segments(nodes: Nodes, parts: Sequence[ir.Value], form: _Form) -> list[ir.Value]:
    """Return the segments of each text with the special tokens after it."""
    before = [len(form.ids[0]), *[0] * (len(parts) - 1)]
    values = []
    for part, special, first, kind in zip(parts, form.ids[1:], before, form.types, strict=True):
        count = nodes.add("Add", nodes.add("Shape", part), nodes.integers(len(special) + first))
        fill = nodes.add("Constant", value_int=kind)
        values.append(nodes.add("Expand", fill, count))
    return values


def _cut(nodes: Nodes, parts: Sequence[ir.Value], room: int) -> list[ir.Value]:
    """Cut the ids of a text, or of a pair the longer one first, as `tokenizers` does."""
    start = nodes.integers(0)
    whole = nodes.integers(room)
    if len(parts) == 1:
        return [nodes.slice(parts[0], start, whole)]
    lengths = [nodes.add("Shape", part) for part in parts]
    ends = []
    for own, other, half in zip(
        lengths, reversed(lengths), (room // 2, -(-room // 2)), strict=True
    ):
        # A text keeps what the other one leaves, and at least half.
        left = nodes.add("Sub", whole, other)
        least = nodes.add("Max", left, _half_of(nodes, own, other, half, room))
        ends.append(nodes.add("Min", own, least))
    return [nodes.slice(part, start, end) for part, end in zip(parts, ends, strict=True)]


def _half_of(nodes: Nodes, own: ir.Value, other: ir.Value, half: int, room: int) -> ir.Value:
    """Return the room of a text if both are cut: the longer one gets the odd token."""
    is_longer = nodes.add("Greater", own, other)
    is_equal = nodes.add("Equal", own, other)
    by_length = nodes.add(
        "Where", is_longer, nodes.integers(-(-room // 2)), nodes.integers(room // 2)
    )
    # Of texts of the same length, the second one gets it.
    return nodes.add("Where", is_equal, nodes.integers(half), by_length)


def _tokenizer_of(folder: Path) -> bytes:
    """Return the part of a written graph that makes ids of texts, for the check of tokens."""
    model = ir.load(folder / MODEL)
    values = (value for node in model.graph for value in node.outputs)
    ids = next(value for value in values if value.name == _IDS)
    ids.type, ids.shape = ir.TensorType(ir.DataType.INT64), ir.Shape(["batch", "tokens"])
    model.graph.outputs[:] = [ids]
    content: bytes = ir.to_proto(tidy(model)).SerializeToString()
    return content


def _run(model: Path | bytes, items: Sequence[Item]) -> dict[str, list[NDArray[Any]]]:
    """Run a graph that takes strings, each text alone.

    Returns:
        For each output, a result for each item, without the batch dimension.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    session = onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model),
        options,
        providers=["CPUExecutionProvider"],
    )
    names = [value.name for value in session.get_outputs()]
    found: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for item in items:
        texts = (item,) if isinstance(item, str) else item
        inputs = {
            name: np.array([text], dtype=object)
            for name, text in zip((TEXT, TEXT_PAIR), texts, strict=False)
        }
        for name, value in zip(names, session.run(None, inputs), strict=True):
            found[name].append(value[0])
    return found


def _check(source: Source, folder: Path) -> Sequence[Agreement]:
    tokenizer = _tokenizer_of(folder)
    check_tokens(
        source,
        lambda items: _run(tokenizer, items)[_IDS],
        converter="The graph of onnxruntime-extensions",
        prompt=source.prompt,
    )
    items: Sequence[Item] = check_pairs() if source.takes_pairs else check_texts()
    expected, found = expected_results(source, items), _run(folder / MODEL, items)
    return [check_results(name, expected[name], found[name]) for name in source.outputs]


def _refuse(source: Source) -> None:
    kind = type(source.tokenizer().backend.model).__name__
    if kind not in _TOKENIZERS:
        raise UserInputError(
            f"`to='onnx-text'`: there is no graph for a {kind} tokenizer. \"triton\" takes every "
            "tokenizer.",
            argument="to",
        )


def _inputs(source: Source) -> Sequence[str]:
    return (TEXT, TEXT_PAIR) if source.takes_pairs else (TEXT,)


def _usage(source: Source, folder: Path) -> str:
    inputs = ", ".join(f'"{name}": {name}s' for name in _inputs(source))
    return (
        "import onnxruntime\nimport onnxruntime_extensions\n\n"
        "options = onnxruntime.SessionOptions()\n"
        "options.register_custom_ops_library(onnxruntime_extensions.get_library_path())\n"
        f"session = onnxruntime.InferenceSession({str(folder / MODEL)!r}, options)\n"
        f"session.run(None, {{{inputs}}})"
    )


def _notices(source: Source) -> Sequence[str]:
    return [
        "Special tokens that a text spells out, as [MASK] does, are ordinary text in the graph.",
        *source.states_notices,
    ]


ONNX_TEXT = Format(
    engine="onnxruntime",
    default_outputs=SENTENCE_EMBEDDING,
    refuse=_refuse,
    write=_write,
    check=_check,
    inputs=_inputs,
    outputs=lambda source: source.outputs,
    usage=_usage,
    notices=_notices,
)
