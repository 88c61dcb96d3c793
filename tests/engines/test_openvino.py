"""What OpenVINO does to a process."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from native_guard import run_apart
from qdqbert.graphs.check import save_graph

pytestmark = pytest.mark.openvino

GRAPH = """
<ir_version: 10, opset_import: ["" : 21]>
g (int64[batch, sequence] a) => (float[batch, sequence] b) { b = Cast <to = 1> (a) }
"""
# Closes a model in another thread than the one that loaded it, then takes a signal.
CODE = """
import signal, sys, threading
from pathlib import Path
from qdqbert.engines.registry import open_runner

signal.signal(signal.SIGINT, lambda number, frame: print("taken"))
runners = [open_runner("openvino", Path(sys.argv[1]), threads=1)]
thread = threading.Thread(target=runners.clear)
thread.start()
thread.join()
signal.raise_signal(signal.SIGINT)
"""


def test_a_signal_is_taken_after_a_model_was_closed_in_another_thread(tmp_path) -> None:
    path = tmp_path / "graph.onnx"
    save_graph(ir.from_onnx_text(GRAPH), path)
    assert run_apart("-c", CODE, str(path)) == "taken\n"
