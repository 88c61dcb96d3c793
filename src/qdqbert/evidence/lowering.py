"""Check that an engine agrees with the fake-quantized PyTorch model, layer by layer.

End to end, rounding ties make two correct implementations diverge (decision 4).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qdqbert.calibration.reference.body import Body, to_numpy
from qdqbert.calibration.reference.sited_model import SitedModel
from qdqbert.common.choices import EngineName
from qdqbert.data.tokenizing.encoding import Batch
from qdqbert.encoders.task_kinds import TASK_KINDS
from qdqbert.engines.registry import open_runner
from qdqbert.engines.runner import Runner
from qdqbert.evidence.fidelity import signal_and_noise, to_decibels
from qdqbert.graphs.check import add_teacher_forcing, save_graph
from qdqbert.graphs.writer import layer_input

# Layers that agree to 40 dB (`Target.agreement_db`) differ by rounding ties only. With a misplaced
# scale or bias, agreement is far lower.
WANTED_DB = 40.0

# Relative size of the noise that simulates another order of the same float32 sums.
LAST_BITS = 1e-6

_LEAST_DB = 25.0
# An engine adds less than this to the noise of the Q/DQ pairs, dB. Ties move it by less than 3 dB.
_ADDED_DB = 6.0
# In float16, values are close enough to the middle of two codes a thousand times as often.
_LEAST_DB_IN_HALF = 12.0
# Outputs with one value for each token.
_OF_TOKENS = {
    name
    for kind in TASK_KINDS.values()
    for name in kind.outputs
    if kind.of_tokens and kind.rank == 2
}


Values = Mapping[str, NDArray[np.float32]]
"""Values by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerFidelity:
    """How close the states of a quantized model are to float after one layer.

    Attributes:
        name: Name of the value that the layer computes.
        sqnr_db: SQNR of this value, float being the signal, dB. The model is given texts only, so
            the noise of all layers before is in it.
    """

    name: str
    sqnr_db: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoweringCheck:
    """Agreement of a graph on an engine with the fake-quantized PyTorch model.

    Attributes:
        engine: Engine that ran the graph.
        worst_layer_db: Lowest SQNR of any layer's output, given PyTorch's input of that layer, dB.
        worst_layer: Name of that value.
        end_to_end_db: SQNR of the model's output, given texts only, dB. It includes rounding ties,
            which grow from layer to layer.
        ties_db: SQNR of PyTorch against itself for that layer if the last bits of its input change,
            dB. Values near the middle of two codes are then rounded to the other code. No engine
            agrees better.
        native_db: Like `worst_layer_db`, with the fastest arithmetic of the engine, which can
            saturate on CPUs without VNNI.
        last_bits: Relative rounding error of the graph's float type, which causes the ties.
        agreement_db: SQNR that the target's arithmetic should reach apart from ties, dB.
        to_float: SQNR of the model's output to that of the float model, dB, given texts only, of
            PyTorch (`pytorch`), and of the engine by the type of its floats between int8 operators
            (`float32`, and `bf16` on OpenVINO if the CPU has it). Empty if it was not measured.
    """

    engine: str
    worst_layer_db: float
    worst_layer: str
    end_to_end_db: float
    ties_db: float
    native_db: float
    last_bits: float = LAST_BITS
    agreement_db: float = WANTED_DB
    to_float: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def is_exact(self) -> bool:
        """Whether the engine computes the Q/DQ pairs, layer by layer and as a whole.

        Rounding ties and the target's arithmetic may add noise to layers, and the engine's types
        may add a little to the whole.
        """
        return self.worst_layer_db >= self.wanted_db and not self.far

    @property
    def far(self) -> tuple[str, ...]:
        """Types with which the whole graph is much farther from float than in PyTorch.

        Layers are checked one by one, so this also finds what an engine makes of their ends.
        """
        wanted = min(_LEAST_DB, self.to_float.get("pytorch", -math.inf) - _ADDED_DB)
        return tuple(name for name, found in self.to_float.items() if found < wanted)

    @property
    def wanted_db(self) -> float:
        """SQNR that is required, in dB.

        It is `agreement_db`, or 3 dB below `ties_db` if that is lower, but at least 25 dB, or 12 dB
        where floats between int8 operators are float16. Where `ties_db` is infinite, only this
        minimum is required. A layer whose output is quantized hides noise in the last bits, and
        then the simulation does not show how much ties cost.
        """
        least = _LEAST_DB if self.last_bits <= LAST_BITS else _LEAST_DB_IN_HALF
        if math.isinf(self.ties_db):
            return least
        return max(least, min(self.agreement_db, self.ties_db - 3))

    @property
    def saturates(self) -> bool:
        """Whether the int8 arithmetic of this CPU is worse than exact arithmetic."""
        return self.native_db < min(self.agreement_db, self.worst_layer_db - 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reference:
    """Results of the fake-quantized PyTorch model for one batch.

    Attributes:
        inputs: Inputs by name, `(batch, seq)` or `(batch, choices, seq)`.
        states: Inputs of the encoder layers by name of value, `(batch, seq, hidden)`.
        outputs: Outputs by name.
        noisy: States and outputs of a run in which each layer gets its state with noise in the last
            bits.
        last_bits: Relative size of that noise.
    """

    inputs: Mapping[str, NDArray[np.int64]]
    states: Mapping[str, NDArray[np.float32]]
    outputs: Mapping[str, NDArray[np.float32]]
    noisy: Mapping[str, NDArray[np.float32]]
    last_bits: float = LAST_BITS


def make_references(
    sited: SitedModel,
    body: Body,
    layers: Sequence[str],
    batches: Sequence[Batch],
    *,
    outputs: Collection[str] | None = None,
    last_bits: float = LAST_BITS,
) -> list[Reference]:
    """Run the model and keep the input of each layer. Call it in a `quantizing` context.

    `body` is the same model, in the form that is exported, and `layers` are paths of its encoder
    layers. `outputs` are names of those to keep; all if `None`. `last_bits` is the relative size of
    the noise that simulates rounding between int8 operators. With 0, there is no noise, and each
    batch is run once instead of twice.
    """
    modules = [sited.model.get_submodule(layer) for layer in layers]
    places = {layer_input(index): module for index, module in enumerate(modules)}
    references = []
    for batch in batches:
        states, made = _run(body, batch, places, given=None, last_bits=0)
        kept = {name: x for name, x in made.items() if outputs is None or name in outputs}
        noisy = {**states, **kept}
        if last_bits:
            changed = _run(body, batch, places, given=states, last_bits=last_bits)
            noisy = {**changed[0], **changed[1]}
        references.append(
            Reference(
                inputs=batch.inputs, states=states, outputs=kept, noisy=noisy, last_bits=last_bits
            )
        )
    return references


def _run(
    body: Body,
    batch: Batch,
    places: Mapping[str, nn.Module],
    given: Mapping[str, NDArray[np.float32]] | None,
    last_bits: float,
) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    """Return the input of each layer, and the outputs.

    With `given`, each layer gets that state with noise as its input.
    """
    states: dict[str, NDArray[np.float32]] = {}
    generator = torch.Generator().manual_seed(0)

    def hook(name: str, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        states[name] = arguments[0].numpy()
        if given is None:
            return None
        state = torch.from_numpy(given[name])
        noise = torch.randn(state.shape, generator=generator)
        return (state * (1 + last_bits * noise), *arguments[1:])

    hooks = [
        module.register_forward_pre_hook(lambda _, arguments, name=name: hook(name, arguments))
        for name, module in places.items()
    ]
    try:
        with torch.inference_mode():
            outputs = body(**{name: torch.from_numpy(x) for name, x in batch.inputs.items()})
    finally:
        for each in hooks:
            each.remove()
    return states, to_numpy(outputs, body.output_names)


def layer_fidelity(
    references: Sequence[Reference], floats: Sequence[Reference]
) -> tuple[LayerFidelity, ...]:
    """Return the SQNR of a quantized model to float after each layer.

    Returns:
        The embeddings, the encoder layers but the last one, then each output, in this order.
    """
    found = _sqnr(
        (exact, {**exact.states, **exact.outputs}, {**quantized.states, **quantized.outputs})
        for quantized, exact in zip(references, floats, strict=True)
    )
    return tuple(LayerFidelity(name=name, sqnr_db=level) for name, level in found.items())


def check_lowering(
    path: Path,
    references: Sequence[Reference],
    engine: EngineName,
    *,
    floats: Sequence[Reference] = (),
    agreement_db: float = WANTED_DB,
) -> LoweringCheck:
    """Compare a finished graph on an engine with results of PyTorch.

    Temporary graphs are written to the folder of the file.

    `floats` are the float model's results on the same batches, to see how far the whole graph is
    from them. For `agreement_db` see `LoweringCheck`.
    """
    names = list(references[0].states)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        open_ = functools.partial(open_runner, engine, low_memory=True)
        in_full = functools.partial(open_, precision="f32")
        open_layers = _layers_opener(path, names, engine, Path(folder), in_full)
        exact = native = _layer_sqnr(open_layers(exact=True), references)
        # Only ONNX Runtime has a choice between exact and fast arithmetic.
        if engine == "onnxruntime":
            native = _layer_sqnr(open_layers(exact=False), references)
        output = next(iter(references[0].outputs))
        full = _run_whole(in_full(path), references, output)
        runs = {"pytorch": [each.outputs for each in references], "float32": full}
        # Only OpenVINO usually computes in bf16.
        if floats and engine == "openvino":
            runs["bf16"] = _run_whole(open_(path), references, output)
    worst = min(exact, key=lambda name: exact[name])
    # PyTorch against itself with noise in the last bits.
    ties = _sqnr(
        (each, {worst: {**each.states, **each.outputs}[worst]}, each.noisy) for each in references
    )
    return LoweringCheck(
        engine=engine,
        worst_layer_db=exact[worst],
        worst_layer=worst,
        end_to_end_db=_whole_sqnr(references, full)[output],
        ties_db=ties[worst],
        native_db=min(native.values()),
        last_bits=references[0].last_bits,
        agreement_db=agreement_db,
        to_float={name: _whole_sqnr(floats, each)[output] for name, each in runs.items() if floats},
    )


def _layers_opener(
    path: Path, names: Sequence[str], engine: EngineName, folder: Path, open_: Callable[..., Runner]
) -> Callable[..., Runner]:
    """Return an opener of a graph whose layers read given states; see `add_teacher_forcing`."""
    if engine == "native":
        from qdqbert.engines.native.layers import LayerRunner

        # Its arithmetic is always exact.
        return lambda exact: LayerRunner(path, names)
    layers = folder / "layers.onnx"
    # An engine that fuses the end of the embeddings with the first layer does so here, too.
    save_graph(add_teacher_forcing(ir.load(path), names[1:]), layers, temporary=True)
    return functools.partial(open_, layers)


def _layer_sqnr(runner: Runner, references: Sequence[Reference]) -> dict[str, float]:
    """Return the SQNR of each layer's output, given PyTorch's layer inputs, dB."""

    def run(reference: Reference) -> Values:
        given = {f"{name}.forced": state for name, state in reference.states.items()}
        known: dict[str, NDArray[Any]] = {**reference.inputs, **given}
        return runner.run({name: known[name] for name in runner.input_names})

    return _sqnr((each, {**each.outputs, **each.states}, run(each)) for each in references)


def _run_whole(runner: Runner, references: Sequence[Reference], output: str) -> list[Values]:
    return [
        {output: runner.run({name: each.inputs[name] for name in runner.input_names})[output]}
        for each in references
    ]


def _whole_sqnr(references: Sequence[Reference], made: Sequence[Values]) -> dict[str, float]:
    """Return the SQNR of outputs to those of references, dB."""
    return _sqnr(zip(references, (each.outputs for each in references), made, strict=True))


def _sqnr(runs: Iterable[tuple[Reference, Values, Values]]) -> dict[str, float]:
    """Return the SQNR of each value over all batches, dB.

    `runs` have a batch, its values as they should be, and those of them that something computed.
    """
    # Sums of squares, since the values of all layers take hundreds of MB.
    powers: dict[str, NDArray[np.float64]] = {}
    for reference, exact, computed in runs:
        for name in filter(computed.__contains__, exact):
            pair = (_text_only(name, each[name], reference) for each in (exact, computed))
            powers[name] = powers.get(name, np.zeros(2)) + signal_and_noise(*pair)
    return {name: to_decibels(*sums) for name, sums in powers.items()}


def _text_only(name: str, values: NDArray[np.float32], reference: Reference) -> NDArray[np.float32]:
    """Return the values at text positions. Values without positions are flattened."""
    mask = reference.inputs["attention_mask"].astype(bool)
    # For encoder layers, each choice is a text of its own.
    has_positions = values.ndim == 3 or name in _OF_TOKENS
    return values[mask.reshape(-1, mask.shape[-1])] if has_positions else values.reshape(-1)
