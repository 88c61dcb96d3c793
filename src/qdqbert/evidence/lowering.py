"""Whether an engine computes what the fake-quantized PyTorch model does, layer by layer."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from qdqbert.encoding import Batch
from qdqbert.engines.runner import EngineName, Runner, open_runner
from qdqbert.evidence.fidelity import sqnr_db
from qdqbert.graph.check import layer_inputs, save_graph, teacher_forced
from qdqbert.graph.export import GraphBody
from qdqbert.insert.sited import SitedModel

WANTED_DB = 40.0
"""Layers that agree to 40 dB differ by rounding ties; a wrong scale or bias is below 20 dB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoweringCheck:
    """Agreement of a graph on an engine with the fake-quantized PyTorch model.

    Attributes:
        engine: What ran the graph.
        worst_layer_db: Lowest SQNR of any layer's output, given PyTorch's input of that layer.
        worst_layer: Name of that value.
        end_to_end_db: SQNR of the model's output, given texts only; includes how rounding ties
            grow from layer to layer.
        native_db: As `worst_layer_db`, with the engine's fastest arithmetic, which can saturate
            on CPUs without VNNI.
    """

    engine: str
    worst_layer_db: float
    worst_layer: str
    end_to_end_db: float
    native_db: float

    @property
    def is_exact(self) -> bool:
        """Whether every layer agrees."""
        return self.worst_layer_db >= WANTED_DB

    @property
    def saturates(self) -> bool:
        """Whether this CPU's int8 arithmetic loses what exact arithmetic keeps."""
        return self.native_db < min(WANTED_DB, self.worst_layer_db - 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """What the fake-quantized PyTorch model computed for one batch.

    Attributes:
        inputs: What it was given, by name, `(batch, seq)`.
        states: Inputs of its encoder layers by name of value, `(batch, seq, hidden)`.
        outputs: Its outputs by name.
    """

    inputs: Mapping[str, NDArray[np.int64]]
    states: Mapping[str, NDArray[np.float32]]
    outputs: Mapping[str, NDArray[np.float32]]


def make_references(
    sited: SitedModel,
    body: GraphBody,
    sited_graph: ir.Model,
    layers: Sequence[str],
    batches: Sequence[Batch],
) -> list[Reference]:
    """Runs the model as it stands, which is to be under `quantizing`, and keeps each layer's input.

    Args:
        sited: The model with quantizers.
        body: The same model, wrapped.
        sited_graph: Its exported graph.
        layers: Paths of its encoder layers.
        batches: Real text.
    """
    names = layer_inputs(sited, sited_graph, layers)
    states: dict[str, NDArray[np.float32]] = {}
    hooks = [
        sited.model.get_submodule(layer).register_forward_pre_hook(
            lambda _, arguments, name=name: states.update({name: arguments[0].numpy()})
        )
        for layer, name in zip(layers, names, strict=True)
    ]
    references = []
    try:
        for batch in batches:
            with torch.inference_mode():
                outputs = body(**{k: torch.from_numpy(v) for k, v in batch.inputs.items()})
            references.append(
                Reference(
                    inputs=batch.inputs,
                    states=dict(states),
                    outputs={
                        name: output.numpy()
                        for name, output in zip(body.output_names, outputs, strict=True)
                    },
                )
            )
    finally:
        for hook in hooks:
            hook.remove()
    return references


def check_lowering(
    model: ir.Model, references: Sequence[Reference], engine: EngineName
) -> LoweringCheck:
    """Compares a finished graph on an engine with what PyTorch computed.

    Args:
        model: The graph.
        references: At least one.
        engine: What to run it on.
    """
    forced = teacher_forced(model, list(references[0].states))
    with tempfile.TemporaryDirectory() as folder:
        layers, whole = Path(folder) / "layers.onnx", Path(folder) / "whole.onnx"
        save_graph(forced, layers)
        save_graph(model, whole)
        exact = _layer_sqnr(open_runner(engine, layers, exact=True, precision="f32"), references)
        native = _layer_sqnr(open_runner(engine, layers, precision="f32"), references)
        end_to_end = _end_to_end(open_runner(engine, whole, precision="f32"), references)
    worst = min(exact, key=lambda name: exact[name])
    return LoweringCheck(
        engine=engine,
        worst_layer_db=exact[worst],
        worst_layer=worst,
        end_to_end_db=end_to_end,
        native_db=min(native.values()),
    )


def _layer_sqnr(runner: Runner, references: Sequence[Reference]) -> dict[str, float]:
    """SQNR of each inner value and of the main output, given PyTorch's layer inputs."""
    expected: dict[str, list[NDArray[np.float32]]] = {}
    actual: dict[str, list[NDArray[np.float32]]] = {}
    for reference in references:
        given = {f"{name}.forced": state for name, state in reference.states.items()}
        known: dict[str, NDArray[Any]] = {**reference.inputs, **given}
        outputs = runner.run({name: known[name] for name in runner.input_names})
        for name, state in {**reference.outputs, **reference.states}.items():
            expected.setdefault(name, []).append(_text_only(state, reference))
            actual.setdefault(name, []).append(_text_only(outputs[name], reference))
    return {
        name: sqnr_db(np.concatenate(expected[name]), np.concatenate(actual[name]))
        for name in expected
    }


def _end_to_end(runner: Runner, references: Sequence[Reference]) -> float:
    name = next(iter(references[0].outputs))
    pairs = [
        (
            _text_only(reference.outputs[name], reference),
            _text_only(
                runner.run({each: reference.inputs[each] for each in runner.input_names})[name],
                reference,
            ),
        )
        for reference in references
    ]
    return sqnr_db(*(np.concatenate(side) for side in zip(*pairs, strict=True)))


def _text_only(values: NDArray[np.float32], reference: Reference) -> NDArray[np.float32]:
    """Drops [PAD] positions of token states; leaves rows a text as they are."""
    mask = reference.inputs["attention_mask"].astype(bool)
    return values[mask] if values.ndim == 3 else values
