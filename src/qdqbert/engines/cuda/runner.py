"""Run a packed model on an NVIDIA GPU; see `qdqbert.engines.runner.Runner`."""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qdqbert.engines.cuda.heads import Heads
from qdqbert.engines.cuda.program import (
    Chunk,
    Model,
    Numbers,
    Program,
    capacity_of_blocks,
)
from qdqbert.engines.cuda.weights import Tensors
from qdqbert.engines.index_limits import check_ids
from qdqbert.engines.native.storage import Packed, load_packed
from qdqbert.engines.runner import Outputs
from qdqbert.engines.token_inputs import (
    TokenInputs,
    attended_tokens,
    check_lengths,
    read_inputs,
    word_factors,
)

# Tokens that programs are made for. Tiles without tokens take no time, so few sizes are enough.
_CAPACITIES = (16, 64, 256, 1024, 2048, 4096, 8192)
# Graphs are captured one at a time, whatever threads run models.
_CAPTURING = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Batch:
    """Texts without padding, and where they were."""

    chunk: Chunk
    inputs: TokenInputs


class _Stream:
    """What one forward pass at a time needs: programs with their buffers, and captured graphs."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self._model, self._device = model, device
        self._programs: dict[int, Program] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._staging = torch.zeros(0, dtype=torch.int32)
        self.cuda: Any = None
        if device.type == "cuda":
            self.cuda = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def stage(self, chunks: Sequence[tuple[int, Chunk]]) -> Sequence[torch.Tensor]:
        """Return the numbers of chunks on the device, given the capacity of each."""
        sizes = [Numbers.size(capacity) for capacity, _ in chunks]
        if len(self._staging) < sum(sizes):
            pinned = self._device.type == "cuda"
            self._staging = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pinned)
        host = self._staging.numpy()
        first = 0
        for size, (capacity, chunk) in zip(sizes, chunks, strict=True):
            Numbers(array=host[first : first + size], tokens=capacity).write(chunk)
            first += size
        moved = self._staging[:first].to(self._device, non_blocking=True)
        return torch.split(moved, sizes)

    def run(self, capacity: int, numbers: torch.Tensor) -> Program:
        """Run a program, whose states stay as they are until it runs again."""
        program = self._programs.get(capacity)
        if program is None:
            program = self._programs[capacity] = self._model.program(capacity)
        program.numbers.array.copy_(numbers)
        if self.cuda is None:
            program.run()
            return program
        graph = self._graphs.get(capacity)
        if graph is None:
            # Kernels are compiled before they are captured.
            program.run()
            self._graphs[capacity] = self._captured(program)
        else:
            graph.replay()
        return program

    def _captured(self, program: Program) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with _CAPTURING:
            torch.cuda.current_stream(self._device).synchronize()
            with torch.cuda.graph(graph, stream=self.cuda, capture_error_mode="thread_local"):
                program.run()
        return graph


class CudaRunner:
    """A packed model on a GPU.

    In INT8, the result for a text has the same bits whatever texts are in the batch, in whatever
    order.
    """

    def __init__(
        self,
        model: Path | Packed,
        *,
        device: torch.device,
        capability: int,
        tokens: int | None = None,
        streams: int = 1,
    ) -> None:
        """Copy a model to a device.

        Args:
            model: The file of a packed model, or the model.
            device: The GPU; the CPU in Triton's interpreter.
            capability: Compute capability of the GPU, times 10.
            tokens: Most tokens that run together; what stays in the second-level cache of the GPU
                by default.
            streams: Number of inferences that run at the same time.

        Raises:
            CheckpointError: The file is damaged or has another format.
            GraphError: The kernels do not compute a part of the model.
        """
        packed = load_packed(model) if isinstance(model, Path) else model
        tensors = Tensors(packed, device)
        self._settings, self._device = packed.settings, device
        with self._on_device():
            self._model = Model(tensors, capability)
            self._heads = Heads(tensors)
            self._free: queue.SimpleQueue[_Stream] = queue.SimpleQueue()
            for _ in range(streams):
                self._free.put(_Stream(self._model, device))
            if device.type == "cuda":
                # Other streams do not wait for the copies on this one.
                torch.cuda.current_stream(device).synchronize()
        self._tokens = tokens or _cached_tokens(self._settings, device)
        self.input_names = tuple(self._settings["input_names"])
        self.output_names = self._heads.output_names
        self.precision = "f16"

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Return the outputs of one forward pass by name, as float32.

        Raises:
            UserInputError: An input is missing or has a wrong dtype or shape, a token id is outside
                of the vocabulary, or a text is empty or longer than the model takes.
            MemoryError: The GPU has too little free memory.
        """
        batch = self._batch(inputs)
        names = [each for each in self.output_names if wanted is None or each in wanted]
        try:
            return self._outputs_of(batch, names)
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(
                f"{self._device} has too little free memory for {len(batch.chunk.attended)} texts "
                f"of {len(batch.chunk.ids)} tokens. Run fewer or shorter texts at a time, or load "
                "the model with `device='cpu'`."
            ) from error

    def _outputs_of(self, batch: _Batch, names: Sequence[str]) -> Outputs:
        chunks = [(_capacity(each), each) for each in chunks_of(batch.chunk, self._tokens)]
        found: list[dict[str, tuple[bool, torch.Tensor]]] = []
        with self._stream() as stream:
            for (capacity, chunk), numbers in zip(chunks, stream.stage(chunks), strict=True):
                program = stream.run(capacity, numbers)
                texts = len(chunk.attended)
                found.append(
                    self._heads.run(
                        program.states[: len(chunk.ids)],
                        program.numbers.part("starts")[: texts + 1],
                        chunk.starts,
                        names,
                    )
                )
            return self._outputs(batch, names, found)

    def _outputs(
        self,
        batch: _Batch,
        names: Sequence[str],
        found: Sequence[Mapping[str, tuple[bool, torch.Tensor]]],
    ) -> Outputs:
        """Return outputs in the shape of the inputs, with zeros at padding."""
        outputs: Outputs = {}
        shape = batch.inputs.shape
        for name in names:
            rows = torch.cat([each[name][1] for each in found]).cpu().numpy()
            if found[0][name][0]:
                mask = batch.inputs.kept != 0
                whole = np.zeros((*mask.shape, *rows.shape[1:]), np.float32)
                whole[mask] = rows
                rows = whole
            outputs[name] = rows.reshape(shape[:-1] + rows.shape[1:])
        return outputs

    def _batch(self, inputs: Mapping[str, NDArray[Any]]) -> _Batch:
        settings, found = self._settings, read_inputs(inputs, self._settings)
        mask = found.kept != 0
        lengths = mask.sum(axis=1)
        check_lengths(lengths, settings["limit"])
        has_types = settings["embeddings"]["has_types"] and "token_type_ids" in found.arrays
        limits = {"input_ids": self._model.vocabulary}
        limits |= {"token_type_ids": self._model.type_count} if has_types else {}
        check_ids({name: found.arrays[name][mask] for name in limits}, limits)
        ids = found.arrays["input_ids"][mask]
        starts = np.append(0, np.cumsum(lengths))
        places = np.arange(len(ids)) - starts[:-1].repeat(lengths)
        if (padding := settings["padding_id"]) is not None:
            # RoBERTa gives all padding tokens row 0, those inside a text too, and does not count
            # them.
            is_token = (found.arrays["input_ids"] != padding) & mask
            places = (np.cumsum(is_token, axis=1) * is_token)[mask]
        types = found.arrays["token_type_ids"][mask] if has_types else np.zeros_like(ids)
        dropped = settings["dropped_id"]
        chunk = Chunk(
            ids=ids.astype(np.int32),
            positions=places.astype(np.int32),
            types=types.astype(np.int32),
            factors=None if dropped is None else word_factors(ids, starts, dropped),
            starts=starts.astype(np.int32),
            attended=attended_tokens(found, lengths).astype(np.int32),
        )
        return _Batch(chunk=chunk, inputs=found)

    @contextlib.contextmanager
    def _stream(self) -> Iterator[_Stream]:
        """Wait for a free stream."""
        stream = self._free.get()
        try:
            with self._on_device(), torch.inference_mode():
                if stream.cuda is None:
                    yield stream
                else:
                    with torch.cuda.stream(stream.cuda):
                        yield stream
        finally:
            self._free.put(stream)

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        if self._device.type == "cuda":
            return torch.cuda.device(self._device)
        return contextlib.nullcontext()


def _capacity(chunk: Chunk) -> int:
    """Return the tokens of the smallest program for some texts."""
    blocks = len(chunk.blocks[0])
    fits = (
        each
        for each in _CAPACITIES
        if len(chunk.ids) <= each and blocks <= capacity_of_blocks(each)
    )
    found = next(fits, None)
    # A text can be longer than all programs are for.
    return -(-len(chunk.ids) // _CAPACITIES[-1]) * _CAPACITIES[-1] if found is None else found


def _cached_tokens(settings: Mapping[str, Any], device: torch.device) -> int:
    """Return the most tokens that run together.

    Their rows stay in the second-level cache of the GPU from one kernel to the next.
    """
    if device.type != "cuda":
        return _CAPACITIES[-1]
    heads = settings["heads"] * settings["head_size"]
    # Codes and float16 of each, states in up to float32.
    bytes_of_token = 7 * settings["hidden"] + 9 * heads + 3 * settings["inner"]
    # The types of torch 2.10 lack it.
    properties: Any = torch.cuda.get_device_properties(device)
    most = properties.L2_cache_size // bytes_of_token
    return max(1024, *(each for each in _CAPACITIES if each <= most))


def chunks_of(batch: Chunk, most: int) -> list[Chunk]:
    """Divide texts into chunks that fit into a program of up to a number of tokens.

    A text of more tokens is a chunk of its own.
    """
    starts, chunks, first = batch.starts, list[Chunk](), 0
    blocks = np.bincount(batch.blocks[0], minlength=len(batch.attended)).cumsum()
    while first < len(batch.attended):
        before = blocks[first - 1] if first else 0
        fits = min(
            np.searchsorted(starts, starts[first] + most, side="right") - 1,
            np.searchsorted(blocks, before + capacity_of_blocks(most), side="right"),
        )
        end = max(int(fits), first + 1)
        tokens = slice(int(starts[first]), int(starts[end]))
        chunks.append(
            Chunk(
                ids=batch.ids[tokens],
                positions=batch.positions[tokens],
                types=batch.types[tokens],
                factors=None if batch.factors is None else batch.factors[tokens],
                starts=starts[first : end + 1] - starts[first],
                attended=batch.attended[first:end],
            )
        )
        first = end
    return chunks
