"""Run each layer of a packed model on given states, to compare it with another implementation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.engines.native.runner import NativeRunner, Stream
from qdqbert.engines.native.schedule import divide
from qdqbert.engines.native.texts import Rows, Texts
from qdqbert.engines.runner import Outputs


class LayerRunner(NativeRunner):
    """A packed model whose layers read given states; see `graphs.check.add_teacher_forcing`.

    For each name of a state `v`, the input `v.forced` is read by a layer, and the output `v` is the
    result of the layer before it, or of the embeddings.
    """

    def __init__(self, model: Path, states: Sequence[str]) -> None:
        """Load a model, with a name for the states that each layer reads, in order."""
        super().__init__(model, threads=1)
        self._states = tuple(states)
        assert len(states) == len(self._program.settings["layers"])
        self.input_names = (*self.input_names, *(f"{name}.forced" for name in states))
        self.output_names = (*states, *self.output_names)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Outputs:
        """Return the states, `(texts, seq, hidden)`, and all outputs."""
        batch = self._batch(inputs)
        width = self._program.settings["hidden"]
        with self._stream() as stream:
            self._run_part(stream, range(0), batch.texts, None)
            found: Outputs = {}
            for index, name in enumerate(self._states):
                found[name] = self._with_padding(stream.job.states[:, :width], batch.mask)
                given = np.asarray(inputs[f"{name}.forced"], np.float32)[batch.mask != 0]
                self._run_part(stream, range(index, index + 1), batch.texts, given)
            names = self._heads.output_names
            tokens_read = self._heads.tokens_read(names, batch.texts.starts)
            outputs = self._outputs(stream, batch, inputs, names, tokens_read)
            return found | outputs

    def _run_part(self, stream: Stream, layers: range, texts: Texts, states: Rows | None) -> None:
        """Run some layers in this thread, on the embeddings or on states `(tokens, channels)`."""
        program, (scratch, *_) = self._program, stream.scratch
        shares = divide(texts.starts, program.settings["heads"], 1)
        stream.job.take(texts, shares)
        if states is not None:
            stream.job.states[:, : states.shape[1]] = states
        scratch.take(shares, 0)
        model = program.part(layers, embeds=states is None)
        program.functions["forward"](
            model.ctypes.data, stream.job.record.ctypes.data, scratch.record.ctypes.data
        )
