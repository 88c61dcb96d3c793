"""Compile the launches of a program for GPUs, on a machine without one: `python triton_compiled.py 90 80`.

Prints a JSON object for each launch that is compiled: its kernel, tile, registers, bytes of stack and
shared memory, and counts of instructions of tensor cores.
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import native_models
from qdqbert.encoders.model import Head, HeadOutput
from qdqbert.engines.cuda.program import Launch, Model
from qdqbert.engines.cuda.weights import Tensors

_TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
_POINTERS = {
    torch.int8: "*i8",
    torch.int32: "*i32",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
}
_INSTRUCTIONS = re.compile(r"\b(U?[HI]G?MMA|UTC[A-Z]*MMA|LDL|STL)\b")


def source_of(launch: Launch) -> tuple[Any, dict[str, Any]]:
    """Return what is compiled for a launch, specialized as when it runs, and its options."""
    given = dict(launch.arguments)
    options = {name: given.pop(name) for name in ("num_warps", "num_stages") if name in given}
    signature, constants, divisible = {}, {}, {}
    for index, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, given[parameter.name]
        if parameter.is_constexpr:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        is_aligned = isinstance(value, int) and value % 16 == 0
        # Slices of the numbers start anywhere.
        is_first = isinstance(value, torch.Tensor) and value.storage_offset() == 0
        if not parameter.is_constexpr and (is_aligned or is_first):
            divisible[(index,)] = [["tt.divisibility", 16]]
    made = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=divisible)
    return made, options


def compiled(launch: Launch, capability: int) -> dict[str, Any]:
    """Return facts of a launch's machine code."""
    source, options = source_of(launch)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(made.asm["cubin"])
        listing = _output("nvdisasm", "-c", str(file))
        usage = _output("cuobjdump", "--dump-resource-usage", str(file))
    numbers = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert numbers is not None, usage
    return {
        "capability": capability,
        "kernel": launch.kernel.fn.__name__,
        "constants": {k: v for k, v in source.constants.items() if isinstance(k, str)}
        if isinstance(source.constants, dict)
        else {},
        "registers": int(numbers[1]),
        "stack": int(numbers[2]),
        "shared": made.metadata.shared,
        "instructions": dict(collections.Counter(_INSTRUCTIONS.findall(listing))),
    }


def _output(tool: str, *arguments: str) -> str:
    found = subprocess.run(
        [str(_TOOLS / tool), *arguments], check=True, capture_output=True, text=True
    )
    return found.stdout
