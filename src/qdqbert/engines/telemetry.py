"""Keep OpenVINO's Python package from sending telemetry.

`import openvino` sends an event to Google Analytics, with an identifier that it stores in
`~/intel`, unless the user has opted out with `opt_in_out --opt_out`. The event is sent by the
package `openvino_telemetry`. Where that package is missing, OpenVINO uses a stub that sends
nothing.

ONNX Runtime's telemetry is turned off in `qdqbert/__init__.py`, by an environment variable.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

_PACKAGE = "openvino_telemetry"


@contextlib.contextmanager
def openvino_telemetry_disabled() -> Iterator[None]:
    """Make `import openvino` in the `with` block use its stub, which sends nothing.

    Has no effect if `openvino` was imported before.
    """
    known = _PACKAGE in sys.modules
    if not known:
        # An import of a module that is `None` here raises ModuleNotFoundError.
        sys.modules[_PACKAGE] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if not known:
            del sys.modules[_PACKAGE]
