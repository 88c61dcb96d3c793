"""Replace modules of `torch.nn` by quantized ones while a model is built.

Source: pytorch-quantization's `quant_modules`. Differs from upstream: originals are always
restored, the export switch is restored if an export fails, and `from_pretrained` of transformers
restores ranges, which version 5 would drop.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from qdqbert.compat import nn as quant_nn
from qdqbert.compat.checkpoints import restoring_ranges
from qdqbert.compat.nn import TensorQuantizer

_quant_entry = namedtuple("_quant_entry", "orig_mod mod_name replace_mod")

# As upstream, without the other modules that have no weight.
_DEFAULT_QUANT_MAP = [
    _quant_entry(torch.nn, name, value)
    for name, value in quant_nn.QUANTIZED.items()
    if not name.startswith(("MaxPool", "InstanceNorm"))
]


class QuantModuleReplacementHelper:
    """Replaces modules and remembers the originals.

    Attributes:
        orginal_func_map: The originals. The spelling is upstream's.
        quant_map: The replacements.
        default_quant_map: The toolkit's own list of replacements.
    """

    def __init__(self) -> None:
        self.orginal_func_map: set[Any] = set()
        self.default_quant_map = _DEFAULT_QUANT_MAP
        self.quant_map: set[Any] = set()

    def prepare_state(
        self,
        float_module_list: Sequence[str] | None = None,
        custom_map: Sequence[Any] | None = None,
    ) -> None:
        """Choose the modules to replace.

        Args:
            float_module_list: Names that stay in float.
            custom_map: Further `(module, name, replacement)`, which are always used.

        Raises:
            ValueError: `float_module_list` has a name that would not be replaced.
        """
        floats = set(float_module_list or ())
        unknown = floats - {entry.mod_name for entry in self.default_quant_map}
        if unknown:
            known = ", ".join(entry.mod_name for entry in self.default_quant_map)
            raise ValueError(
                f"float_module_list names {sorted(unknown)}, which is not replaced. Known: {known}."
            )
        custom = [_quant_entry(*entry) for entry in custom_map or ()]
        taken = {(id(entry.orig_mod), entry.mod_name) for entry in custom}
        kept = [
            entry
            for entry in self.default_quant_map
            if entry.mod_name not in floats and (id(entry.orig_mod), entry.mod_name) not in taken
        ]
        for entry in [*kept, *custom]:
            # Not by `getattr`, which makes functions of the static methods of a class.
            original = vars(entry.orig_mod).get(entry.mod_name) or getattr(
                entry.orig_mod, entry.mod_name
            )
            self.orginal_func_map.add(_quant_entry(entry.orig_mod, entry.mod_name, original))
            self.quant_map.add(entry)

    def apply_quant_modules(self) -> None:
        """Replace the modules."""
        for entry in self.quant_map:
            setattr(entry.orig_mod, entry.mod_name, entry.replace_mod)

    def restore_float_modules(self) -> None:
        """Restore the originals."""
        for entry in self.orginal_func_map:
            setattr(entry.orig_mod, entry.mod_name, entry.replace_mod)
        self.orginal_func_map.clear()
        self.quant_map.clear()


_quant_module_helper_object = QuantModuleReplacementHelper()


def initialize(
    float_module_list: Sequence[str] | None = None,
    custom_quant_modules: Sequence[Any] | None = None,
) -> None:
    """Replace `torch.nn.Linear` and others by quantized modules, for models built from now on.

    Until `deactivate`, `from_pretrained` of transformers also loads ranges that `save_pretrained`
    of such a model stored.

    Args:
        float_module_list: Names that stay in float, such as `"Conv2d"`.
        custom_quant_modules: Further `(module, name, replacement)`.
    """
    _quant_module_helper_object.restore_float_modules()
    custom = [*(custom_quant_modules or ()), *_loader_of_transformers()]
    _quant_module_helper_object.prepare_state(float_module_list, custom)
    _quant_module_helper_object.apply_quant_modules()


def _loader_of_transformers() -> list[Any]:
    if importlib.util.find_spec("transformers") is None:
        return []
    from transformers import PreTrainedModel

    name = "_load_pretrained_model"
    return [(PreTrainedModel, name, staticmethod(restoring_ranges(getattr(PreTrainedModel, name))))]


def deactivate() -> None:
    """Restore torch's own modules."""
    _quant_module_helper_object.restore_float_modules()


@contextlib.contextmanager
def enable_onnx_export() -> Iterator[None]:
    """Set the switch that pytorch-quantization 2.2 needs for an export, and restore it afterwards.

    This package writes Q/DQ nodes in every ONNX export. The context exists for code that uses it.
    """
    before = TensorQuantizer._enable_onnx_export
    TensorQuantizer._enable_onnx_export = True
    try:
        yield
    finally:
        TensorQuantizer._enable_onnx_export = before
