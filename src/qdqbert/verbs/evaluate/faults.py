"""Find what is wrong with a quantized .onnx file, from its weights and from a run on some texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.files import temporary_folder
from qdqbert.common.options.onnx import is_onnx_file
from qdqbert.data.tokenizing.encoding import Batch, first_rows
from qdqbert.engines.registry import open_runner
from qdqbert.evidence.findings import Storage, find_faults
from qdqbert.evidence.stored_weights import read_stored_weights
from qdqbert.graphs.check import save_graph
from qdqbert.graphs.imported.graph_runner import copy_to_run, engine_errors
from qdqbert.graphs.imported.onnx_file import file_errors, load_graph
from qdqbert.verbs.evaluate.options import EvaluateOptions
from qdqbert.verbs.evaluate.subject import names_of

# Tokens whose sums are emulated in each layer, which takes long.
_TOKENS = 128


def find_storage(options: EvaluateOptions, task: str, batch: Batch) -> Storage | None:
    """Return how an .onnx file stores its weights; `None` for other models and float files.

    A few texts of the batch are run.
    """
    if not is_onnx_file(options.model):
        return None
    path = Path(options.model)
    with file_errors(path):
        weights = read_stored_weights(path)
        names = {each.input.name for each in weights.linears if each.input is not None}
        inputs = _record(path, sorted(names), options, task, first_rows(batch, tokens=_TOKENS))
        return find_faults(weights, inputs)


def _record(
    path: Path, names: list[str], options: EvaluateOptions, task: str, batch: Batch
) -> dict[str, NDArray[np.float32]]:
    """Run texts on ONNX Runtime, and return some inner values by name, without [PAD] tokens.

    Return nothing for a graph with fixed sizes.
    """
    with temporary_folder() as scratch:
        copy = copy_to_run(path, scratch / path.name, task=task, names=names_of(options))
        if not copy.sizes.are_dynamic or not names:
            return {}
        model = load_graph(copy.path)
        known = {each.name: each for node in model.graph for each in node.outputs}
        shown = [name for name in names if name in known]
        outputs = model.graph.outputs
        outputs.extend(known[name] for name in shown if known[name] not in outputs)
        shown_copy = scratch / f"shown-{path.name}"
        save_graph(model, shown_copy, temporary=True)
        with engine_errors(path):
            runner = open_runner("onnxruntime", shown_copy)
            found = runner.run({name: batch.inputs[name] for name in runner.input_names})
    mask = np.asarray(batch.inputs["attention_mask"]).astype(bool)
    return {name: _tokens(np.asarray(found[name]), mask) for name in shown}


def _tokens(array: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the rows of an inner value: of tokens that are not [PAD], or of texts."""
    kept = array[mask] if array.shape[:-1] == mask.shape else array.reshape(-1, array.shape[-1])
    return np.ascontiguousarray(kept[:_TOKENS], np.float32)
