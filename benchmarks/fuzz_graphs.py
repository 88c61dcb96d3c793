"""Check that a damaged .onnx file is either loaded or refused with an error that names it.

    python benchmarks/fuzz_graphs.py --count 10000 --seed 0
    python benchmarks/fuzz_graphs.py model.onnx --only 1234    # repeat one mutant, show its error

Mutants are made from a small encoder. Some are changed in their bytes: bits are flipped, the file
is truncated, pieces are duplicated or removed. Others are changed in their parsed form: operators,
inputs, shapes, types, attributes, weights and opsets are changed, removed or duplicated. Each
mutant is loaded as `qdqbert quantize model.onnx` loads its float model or, with `--evaluate`, as
`qdqbert evaluate model.onnx` loads its graph.

A mutant passes if it is loaded, or if an error of this package is raised. It fails if another error
is raised, if the process ends, or if it takes longer than `--limit` seconds.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import multiprocessing
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from google.protobuf.message import DecodeError
from onnx import TensorProto
from rich.console import Console
from rich.table import Table

from qdqbert.common.errors import QdqBertError
from qdqbert.graphs.imported.graph_runner import open_graph_file
from qdqbert.graphs.imported.imported_model import import_onnx

TASK = "text-classification"

# Address space that a worker may use in addition to what it has at its start, in bytes.
MEMORY = 8 << 30

OPERATORS = (
    *("Add", "Sub", "Mul", "Div", "MatMul", "Gemm", "Softmax", "LayerNormalization", "Gelu"),
    *("Erf", "Tanh", "Transpose", "Reshape", "Gather", "Cast", "Identity", "Dropout", "Where"),
    *("ReduceMean", "Pow", "Sqrt", "Shape", "Concat", "Constant", "ConstantOfShape", "Expand"),
    *("Attention", "If", "Loop", "Split", "Einsum", "Unsqueeze", "Range", "RMSNormalization"),
    *("BiasGelu", "FastGelu", "SkipLayerNormalization", "EmbedLayerNormalization"),
    *("MultiHeadAttention", "FusedMatMul", "QLinearMatMul", "Nonsense", ""),
)
NUMBERS = (-(2**63), -(2**31), -7, -2, -1, 0, 1, 2, 3, 4, 5, 7, 11, 32, 2**31 - 1, 2**62, 2**63 - 1)
DOMAINS = ("", "ai.onnx", "com.microsoft", "qdqbert", "qdqbert.future", "unknown")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one mutant.

    Attributes:
        kind: `loaded`, `refused`, `refused by the guard`, or the kind of failure.
        detail: The error.
    """

    kind: str
    detail: str = ""

    @property
    def fails(self) -> bool:
        """Whether this is an error of the program instead of one of the file."""
        return self.kind not in ("loaded", "refused", "refused by the guard")


def tiny_encoder() -> bytes:
    """Return a BERT of one layer with 16 channels, exported by TorchScript."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        vocab_size=40,
        max_position_embeddings=16,
        attn_implementation="eager",
        return_dict=False,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    names = ("input_ids", "attention_mask", "token_type_ids")
    example = tuple(torch.ones((2, 5), dtype=torch.int64) for _ in names)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            model,
            example,
            path,
            input_names=names,
            output_names=("logits",),
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
            opset_version=14,
            dynamo=False,
        )
        return path.read_bytes()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return a damaged copy."""
    if rng.random() < 0.3:
        return rng.choice([_flip, _cut, _drop, _duplicate, _overwrite])(data, rng)
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        return _flip(data, rng)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 8])):
        # Skip an edit that cannot be applied to the model.
        with contextlib.suppress(IndexError, ValueError, TypeError):
            rng.choice(EDITS)(model, rng)
    return bytes(model.SerializeToString())


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    # Most of a file are weights, which can have any value. Names and shapes are at both ends.
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        changed[_position(data, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _position(data: bytes, rng: random.Random) -> int:
    ends = min(len(data), 6000)
    return rng.choice(
        [rng.randrange(len(data)), rng.randrange(ends), len(data) - 1 - rng.randrange(ends)]
    )


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: _position(data, rng)]


def _drop(data: bytes, rng: random.Random) -> bytes:
    start = _position(data, rng)
    return data[:start] + data[start + rng.choice([1, 2, 16, 256]) :]


def _duplicate(data: bytes, rng: random.Random) -> bytes:
    start = _position(data, rng)
    return data[:start] + data[start : start + rng.choice([1, 2, 16, 256])] + data[start:]


def _overwrite(data: bytes, rng: random.Random) -> bytes:
    start, count = _position(data, rng), rng.choice([1, 4, 16])
    return data[:start] + rng.randbytes(count) + data[start + count :]


Edit = Callable[[onnx.ModelProto, random.Random], None]


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    node: onnx.NodeProto = rng.choice(model.graph.node)
    return node


def _value(model: onnx.ModelProto, rng: random.Random) -> str:
    node = _node(model, rng)
    names: list[str] = [
        *node.output,
        *node.input,
        rng.choice(model.graph.initializer).name,
        "",
        "missing",
    ]
    return rng.choice(names)


def _other_input(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    node.input[rng.randrange(len(node.input))] = _value(model, rng)


def _fewer_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    del node.input[rng.randrange(len(node.input))]


def _more_inputs(model: onnx.ModelProto, rng: random.Random) -> None:
    _node(model, rng).input.append(_value(model, rng))


def _other_output(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    node.output[rng.randrange(len(node.output))] = _value(model, rng)


def _more_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    _node(model, rng).output.append(rng.choice([_value(model, rng), "more"]))


def _fewer_outputs(model: onnx.ModelProto, rng: random.Random) -> None:
    del _node(model, rng).output[:]


def _other_operator(model: onnx.ModelProto, rng: random.Random) -> None:
    _node(model, rng).op_type = rng.choice(OPERATORS)


def _other_domain(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    node.domain = rng.choice(DOMAINS)
    if node.domain == "com.microsoft" and rng.random() < 0.7:
        node.op_type = rng.choice([each for each in OPERATORS if len(each) > 7])
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))


def _to_microsoft(model: onnx.ModelProto, rng: random.Random) -> None:
    """Turn a node into a fused operator with random inputs."""
    node = _node(model, rng)
    node.domain = "com.microsoft"
    node.op_type = rng.choice(
        [*OPERATORS[OPERATORS.index("BiasGelu") : OPERATORS.index("QLinearMatMul")], "Attention"]
    )
    node.input.extend(_value(model, rng) for _ in range(rng.randrange(7)))
    node.attribute.append(onnx.helper.make_attribute("num_heads", rng.choice([*NUMBERS, 2, 2])))
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))


def _no_node(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.node[rng.randrange(len(model.graph.node))]


def _node_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.node.insert(rng.randrange(len(model.graph.node)), _node(model, rng))


def _nodes_swapped(model: onnx.ModelProto, rng: random.Random) -> None:
    nodes = model.graph.node
    one, two = rng.randrange(len(nodes)), rng.randrange(len(nodes))
    first = onnx.NodeProto.FromString(nodes[one].SerializeToString())
    nodes[one].CopyFrom(nodes[two])
    nodes[two].CopyFrom(first)


def _attribute(model: onnx.ModelProto, rng: random.Random) -> onnx.AttributeProto:
    attributes: list[onnx.AttributeProto] = [
        each for node in model.graph.node for each in node.attribute
    ]
    return rng.choice(attributes)


def _other_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = _attribute(model, rng)
    name = attribute.name
    value = rng.choice(
        [
            rng.choice(NUMBERS),
            rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30]),
            [rng.choice(NUMBERS) for _ in range(rng.randrange(1, 5))],
            "text",
            onnx.helper.make_tensor("t", TensorProto.INT64, [1], [rng.choice(NUMBERS)]),
        ]
    )
    attribute.CopyFrom(onnx.helper.make_attribute(name, value))


def _other_integer(model: onnx.ModelProto, rng: random.Random) -> None:
    attribute = _attribute(model, rng)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
    else:
        attribute.i = rng.choice(NUMBERS)


def _attribute_type(model: onnx.ModelProto, rng: random.Random) -> None:
    _attribute(model, rng).type = rng.choice(onnx.AttributeProto.AttributeType.values())


def _attribute_name(model: onnx.ModelProto, rng: random.Random) -> None:
    _attribute(model, rng).name = rng.choice(["axis", "to", "perm", "axes", "value", "", "epsilon"])


def _no_attributes(model: onnx.ModelProto, rng: random.Random) -> None:
    del _node(model, rng).attribute[:]


def _subgraph(model: onnx.ModelProto, rng: random.Random) -> None:
    graph = onnx.GraphProto(name="inner")
    graph.node.append(_node(model, rng))
    graph.output.add(name=_value(model, rng))
    _node(model, rng).attribute.append(onnx.helper.make_attribute("then_branch", graph))


def _tensors(model: onnx.ModelProto) -> list[TensorProto]:
    constants = [
        each.t for node in model.graph.node for each in node.attribute if each.HasField("t")
    ]
    return [*model.graph.initializer, *constants]


def _dims(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(_tensors(model))
    change = rng.randrange(4)
    if change == 0:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
    elif change == 1:
        del tensor.dims[rng.randrange(len(tensor.dims))]
    elif change == 2:
        tensor.dims.append(rng.choice([0, 1, 2, -1]))
    else:
        dims = list(tensor.dims)
        rng.shuffle(dims)
        tensor.dims[:] = dims


def _tensor_type(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(_tensors(model)).data_type = rng.choice([*range(27), 99])


def _raw_data(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(_tensors(model))
    data = tensor.raw_data
    tensor.raw_data = rng.choice(
        [b"", data[: len(data) // 2], data + data, rng.randbytes(len(data)), data[:-1]]
    )


def _external(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = rng.choice(_tensors(model))
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", rng.choice(["model.onnx", "../model.onnx", "/etc/hosts", "", "none", "."])),
        ("offset", str(rng.choice([*NUMBERS, "x"]))),
        ("length", str(rng.choice([*NUMBERS, "x"]))),
    ):
        if rng.random() < 0.8:
            tensor.external_data.add(key=key, value=value)


def _no_initializer(model: onnx.ModelProto, rng: random.Random) -> None:
    del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def _initializer_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    model.graph.initializer.append(rng.choice(model.graph.initializer))


def _initializer_name(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(model.graph.initializer).name = _value(model, rng)


def _ports(model: onnx.ModelProto, rng: random.Random) -> Any:
    return rng.choice([model.graph.input, model.graph.output, model.graph.value_info])


def _port_type(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(_ports(model, rng)).type.tensor_type.elem_type = rng.choice([*range(27), 99])


def _port_shape(model: onnx.ModelProto, rng: random.Random) -> None:
    shape = rng.choice(_ports(model, rng)).type.tensor_type.shape
    change = rng.randrange(3)
    if change == 0:
        shape.dim[rng.randrange(len(shape.dim))].dim_value = rng.choice(NUMBERS)
    elif change == 1:
        shape.dim.add(dim_param=rng.choice(["batch", "", "more"]))
    else:
        del shape.dim[rng.randrange(len(shape.dim))]


def _port_name(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(_ports(model, rng)).name = _value(model, rng)


def _no_port(model: onnx.ModelProto, rng: random.Random) -> None:
    ports = _ports(model, rng)
    del ports[rng.randrange(len(ports))]


def _port_twice(model: onnx.ModelProto, rng: random.Random) -> None:
    ports = _ports(model, rng)
    ports.append(rng.choice(ports))


def _port_without_type(model: onnx.ModelProto, rng: random.Random) -> None:
    rng.choice(_ports(model, rng)).ClearField("type")


def _sequence_port(model: onnx.ModelProto, rng: random.Random) -> None:
    port = rng.choice(_ports(model, rng))
    port.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT


def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    change = rng.randrange(3)
    if change == 0:
        model.opset_import[0].version = rng.choice([*NUMBERS, *range(9, 30)])
    elif change == 1:
        del model.opset_import[:]
    else:
        model.opset_import.add(domain=rng.choice(DOMAINS), version=rng.choice([1, 11, 21, 99]))


def _ir_version(model: onnx.ModelProto, rng: random.Random) -> None:
    model.ir_version = rng.choice([0, 1, 3, 4, 8, 10, 13, 99, -1])


def _function(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    node.domain, inputs = "unknown", list(node.input)
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    if rng.random() < 0.7:
        inner.domain = ""
    model.functions.append(
        onnx.helper.make_function(
            "unknown",
            node.op_type,
            inputs[: rng.randrange(len(inputs) + 1)],
            list(node.output),
            [inner],
            [onnx.helper.make_opsetid("", rng.choice([11, 14, 21]))],
        )
    )
    if rng.random() < 0.8:
        model.opset_import.append(onnx.helper.make_opsetid("unknown", 1))


def _sparse(model: onnx.ModelProto, rng: random.Random) -> None:
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(rng.choice(model.graph.initializer))
    sparse.indices.CopyFrom(rng.choice(model.graph.initializer))
    sparse.dims.extend(rng.choice(NUMBERS) for _ in range(2))


EDITS: tuple[Edit, ...] = (
    *(_other_input, _other_input, _fewer_inputs, _more_inputs, _other_output, _more_outputs),
    *(_fewer_outputs, _other_operator, _other_operator, _other_domain, _to_microsoft, _no_node),
    *(_node_twice, _nodes_swapped, _other_attribute, _other_integer, _attribute_type),
    *(_attribute_name, _no_attributes, _subgraph, _dims, _dims, _tensor_type, _raw_data, _external),
    *(_no_initializer, _initializer_twice, _initializer_name, _port_type, _port_shape, _port_name),
    *(_no_port, _port_twice, _port_without_type, _sequence_port, _opset, _ir_version, _function),
    _sparse,
)


def mutant(bases: list[bytes], seed: int) -> bytes:
    """Return the mutant of a seed."""
    rng = random.Random(seed)
    return mutate(rng.choice(bases), rng)


def attempt(data: bytes, folder: Path, *, evaluated: bool = False) -> Outcome:
    """Load a mutant as `quantize` or `evaluate` does."""
    path = folder / "model.onnx"
    path.write_bytes(data)
    try:
        if evaluated:
            open_graph_file(path, task=TASK, engine="onnxruntime")
        else:
            import_onnx(path, task=TASK, input_names={}, scratch=folder).read(longest=64)
    except QdqBertError as error:
        text = str(error)
        if "\n" in text or path.name not in text:
            return Outcome(kind="refused without naming the file", detail=text)
        by_guard = "in a way that no check names" in text
        return Outcome(kind="refused by the guard" if by_guard else "refused", detail=text)
    except Exception:
        return Outcome(kind="unexpected error", detail=traceback.format_exc())
    return Outcome(kind="loaded")


def work(connection: Connection, bases: list[bytes], evaluated: bool) -> None:
    """Receive seeds and send their outcomes, until `None` is received."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        while (seed := connection.recv()) is not None:
            connection.send(attempt(mutant(bases, seed), Path(folder), evaluated=evaluated))


class Worker:
    """A process that is restarted when it crashes or hangs."""

    def __init__(self, bases: list[bytes], *, evaluated: bool) -> None:
        self._bases, self._evaluated = bases, evaluated
        self._start()

    def _start(self) -> None:
        self.connection, remote = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=work, args=(remote, self._bases, self._evaluated), daemon=True
        )
        self._process.start()
        remote.close()

    def outcome(self, seed: int, limit: float) -> Outcome:
        """Return the outcome of the mutant of a seed, with a time limit in seconds."""
        self.connection.send(seed)
        if not self.connection.poll(limit):
            self.stop()
            self._start()
            return Outcome(kind="hung", detail=f"longer than {limit} s")
        try:
            return self.connection.recv()  # type: ignore[no-any-return]
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            self._start()
            return Outcome(kind="crashed", detail=f"exit code {code}")

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "models", nargs="*", type=Path, help="small graphs to mutate (default: an encoder)"
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first mutant")
    parser.add_argument(
        "--limit", type=float, default=20, help="time limit of a mutant, in seconds"
    )
    parser.add_argument(
        "--minutes", type=float, default=None, help="time limit of the run, in minutes"
    )
    parser.add_argument(
        "--only", type=int, help="load only the mutant of this seed, in this process"
    )
    parser.add_argument("--evaluate", action="store_true", help="load mutants as `evaluate` does")
    parser.add_argument("--keep", type=Path, help="with --only: write the mutant to this file")
    arguments = parser.parse_args()
    bases = [path.read_bytes() for path in arguments.models] or [tiny_encoder()]
    if arguments.only is not None:
        data = mutant(bases, arguments.only)
        if arguments.keep:
            arguments.keep.write_bytes(data)
        with tempfile.TemporaryDirectory() as folder:
            print(attempt(data, Path(folder), evaluated=arguments.evaluate))
        return
    worker = Worker(bases, evaluated=arguments.evaluate)
    counts: collections.Counter[str] = collections.Counter()
    by_guard: dict[str, list[int]] = {}
    ended = time.monotonic() + (arguments.minutes or 1e9) * 60
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        if time.monotonic() > ended:
            break
        outcome = worker.outcome(seed, arguments.limit)
        counts[outcome.kind] += 1
        if outcome.fails:
            print(f"mutant {seed}: {outcome.kind}: {outcome.detail}", flush=True)
        if outcome.kind == "refused by the guard":
            by_guard.setdefault(outcome.detail.partition(" names (")[2][:100], []).append(seed)
    worker.stop()
    table = Table("outcome", "mutants", title=f"{counts.total()} mutants from {arguments.seed}")
    for kind, count in counts.most_common():
        table.add_row(kind, str(count))
    console = Console()
    console.print(table)
    for detail, seeds in sorted(by_guard.items(), key=lambda item: -len(item[1])):
        print(f"{len(seeds)} times, first for mutant {seeds[0]}: {detail}")
    sys.exit(any(Outcome(kind=kind).fails for kind in counts))


if __name__ == "__main__":
    main()
