"""Run a packed model on an NVIDIA GPU; see `qdqbert.engines.runner.Runner`."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from qdqbert.engines.cuda import texts
from qdqbert.engines.cuda.heads import Heads, Output
from qdqbert.engines.cuda.program import Buffers, Program, buffers_of
from qdqbert.engines.cuda.texts import Texts
from qdqbert.engines.cuda.weights import Model
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

_LOGGER = logging.getLogger("qdqbert")
# Values of the tokens that run together in a head, as scores of a vocabulary: a gigabyte.
_MOST_SCORES = 2**28
# Graphs are captured one at a time, whatever threads run models.
_CAPTURING = threading.Lock()


class CudaRunner:
    """A packed model on a GPU, which runs one batch after another.

    In INT8, the result for a text has the same bits whatever texts are in the batch, in whatever
    order.
    """

    precision = "f16"

    def __init__(
        self,
        model: Path | Packed,
        device: torch.device,
        capability: int,
        *,
        tokens: int | None = None,
    ) -> None:
        """Copy a model to a device. The memory for texts is taken when the first ones run.

        Args:
            model: The file of a packed model, or the model.
            device: The GPU; the CPU in Triton's interpreter.
            capability: Compute capability of the GPU, times 10.
            tokens: Most tokens that run together; what stays in the second-level cache of the GPU
                by default.

        Raises:
            CheckpointError: The file is damaged or has another format.
            GraphError: The kernels do not compute a part of the model.
        """
        packed = load_packed(model) if isinstance(model, Path) else model
        self._model = Model(packed, device, capability)
        self._settings, self._device = packed.settings, device
        self._heads = Heads(self._model)
        self._tokens = tokens or _tokens_together(self._model, self._heads.widest)
        self._buffers: Buffers = {}
        self._programs: dict[int, Program] = {}
        self._stream: Any = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            # It does not wait for the copies on another one.
            torch.cuda.current_stream(self._device).synchronize()
        self._running = threading.Lock()
        self.input_names = tuple(packed.settings["input_names"])
        self.output_names = self._heads.output_names

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Return the outputs of one forward pass by name, as float32.

        Raises:
            UserInputError: An input is missing or has a wrong dtype or shape, a token id is outside
                of the vocabulary, or a text is empty or longer than the model takes.
            MemoryError: The GPU has too little free memory, even for one text at a time.
        """
        found = read_inputs(inputs, self._settings)
        batch = self._without_padding(found)
        names = [each for each in self.output_names if wanted is None or each in wanted]
        with self._running, torch.inference_mode(), self._on_stream():
            parts = self._run(batch, names)
            return {name: _with_padding([each[name] for each in parts], found) for name in names}

    def run_token(self) -> None:
        """Run a token, so that kernels are compiled."""
        one = np.ones((1, 1, 1) if self._settings["has_choices"] else (1, 1), np.int64)
        self.run({"input_ids": 0 * one, "attention_mask": one})

    def _run(self, batch: Texts, names: Sequence[str]) -> list[dict[str, Output]]:
        """Return the outputs of texts in parts, of as many tokens as there is memory for."""
        # Another program can need the memory for a while, so that the next call tries again.
        first, most, parts = 0, self._tokens, list[dict[str, Output]]()
        while first < len(batch.attended):
            some = batch.part(first, most)
            count, tokens = len(some.attended), int(some.starts[-1])
            try:
                parts.append(self._forward(some, names))
                first += count
                continue
            except torch.cuda.OutOfMemoryError as error:
                if count == 1:
                    raise MemoryError(
                        f"{self._device} has too little free memory for a text of {tokens} tokens. "
                        "Run a shorter one, or load the model with `device='cpu'`."
                    ) from error
            # After the error, which keeps tensors.
            most = tokens // 2
            message = "%s has too little free memory for %d tokens, and runs up to %d together."
            _LOGGER.info(message, self._device, tokens, most)
        return parts

    def _forward(self, batch: Texts, names: Sequence[str]) -> dict[str, Output]:
        """Return the outputs of heads for texts that fit into a program."""
        # torch uses pinned memory again when it was copied.
        size, is_gpu = texts.size_of(batch.capacity), self._stream is not None
        numbers = torch.zeros(size, dtype=torch.int32, pin_memory=is_gpu)
        batch.write(numbers.numpy())
        program = self._program(batch.capacity)
        program.numbers.copy_(numbers, non_blocking=True)
        program.run()
        if is_gpu and batch.capacity in self._programs and program.graph is None:
            # Kernels are compiled before they are captured.
            with _CAPTURING:
                program.capture(self._stream)
        states, starts = program.states[: batch.starts[-1]], program.starts[: len(batch.starts)]
        return self._heads.run(states, starts, names)

    def _program(self, capacity: int) -> Program:
        """Return the program for some tokens. All share the buffers of the longest one."""
        if capacity > texts.CAPACITIES[-1]:
            # The memory for a very long text is free again after it.
            return Program(self._model, buffers_of(self._model, capacity), capacity)
        if not self._buffers or capacity > len(self._buffers["states"]):
            if self._stream is not None:
                self._stream.synchronize()
            self._programs, self._buffers = {}, {}
            self._buffers = buffers_of(self._model, capacity)
        if capacity not in self._programs:
            self._programs[capacity] = Program(self._model, self._buffers, capacity)
        return self._programs[capacity]

    def _without_padding(self, found: TokenInputs) -> Texts:
        settings, mask = self._settings, found.kept != 0
        lengths = mask.sum(axis=1)
        check_lengths(lengths, settings["limit"])
        limits = {"input_ids": len(self._model.words)}
        if settings["embeddings"]["has_types"] and "token_type_ids" in found.arrays:
            limits["token_type_ids"] = len(self._model.types)
        kept = {name: found.arrays[name][mask] for name in limits}
        check_ids(kept, limits)
        ids, starts = kept["input_ids"], np.append(0, np.cumsum(lengths))
        places = np.arange(len(ids)) - starts[:-1].repeat(lengths)
        if (padding := settings["padding_id"]) is not None:
            # RoBERTa gives all padding tokens row 0, those inside a text too, and does not count
            # them.
            is_token = (found.arrays["input_ids"] != padding) & mask
            places = (np.cumsum(is_token, axis=1) * is_token)[mask]
        tokens = np.zeros((4, len(ids)), np.int32)
        tokens[0], tokens[1], tokens[2] = ids, places, kept.get("token_type_ids", 0)
        if (dropped := settings["dropped_id"]) is not None:
            tokens[3] = word_factors(ids, starts, dropped).view(np.int32)
        return Texts(
            tokens=tokens,
            starts=starts.astype(np.int32),
            attended=attended_tokens(found, lengths).astype(np.int32),
        )

    @contextlib.contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Use the GPU and the stream of the model, and wait for it, after an error, too."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                self._stream.synchronize()


def _with_padding(found: Sequence[Output], inputs: TokenInputs) -> NDArray[np.float32]:
    """Return an output in the shape of the inputs, with zeros at padding."""
    rows: NDArray[np.float32] = np.concatenate([each.cpu().numpy() for _, each in found])
    if found[0][0]:
        whole = np.zeros((*inputs.kept.shape, *rows.shape[1:]), np.float32)
        whole[inputs.kept != 0] = rows
        rows = whole
    return rows.reshape(inputs.shape[:-1] + rows.shape[1:])


def _tokens_together(model: Model, widest: int) -> int:
    """Return the most tokens that run together.

    Their rows stay in the second-level cache of the GPU from one kernel to the next. Each has up to
    `widest` values in a head.
    """
    if model.device.type != "cuda":
        return texts.CAPACITIES[-1]
    # Codes and float16 of each, states in up to float32.
    bytes_of_token = 7 * model.hidden + 9 * model.width + 3 * model.settings["inner"]
    # The types of torch 2.10 lack it.
    properties: Any = torch.cuda.get_device_properties(model.device)
    most = min(properties.L2_cache_size // bytes_of_token, _MOST_SCORES // widest)
    return max(1024, *(each for each in texts.CAPACITIES if each <= most))
