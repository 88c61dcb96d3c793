"""The formats of `export`."""

from __future__ import annotations

from qdqbert.common.choices import ExportFormat
from qdqbert.common.extras import require
from qdqbert.integrations.exporting.format import Format


def format_named(name: ExportFormat) -> Format:
    """Return a format."""
    # Each of these files imports a library that the others do not need.
    match name:
        case "openvino":
            require("`export` to 'openvino'", "export")
            from qdqbert.integrations.exporting.openvino import OPENVINO

            return OPENVINO
        case "triton":
            require("`export` to 'triton'", "onnxruntime", "onnxruntime")
            from qdqbert.integrations.exporting.triton import TRITON

            return TRITON
        case "transformers-js":
            require("`export` to 'transformers-js'", "onnxruntime", "onnxruntime")
            from qdqbert.integrations.exporting.transformers_js import TRANSFORMERS_JS

            return TRANSFORMERS_JS
