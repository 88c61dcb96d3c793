"""Compile the launches of a program for GPUs, on a machine without one.

    python triton_compiled.py 90        # each kernel of one model and size
    python triton_compiled.py 80 all    # all sizes of all models

Writes a line of JSON for each launch.
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from native_models import Shape, packed_model
from qdqbert.engines.cuda import kernels
from qdqbert.engines.cuda.program import Launch, Program, buffers_of, linear_launch
from qdqbert.engines.cuda.tiles import FLOAT_TILE, TILES
from qdqbert.engines.cuda.weights import Linear, Model

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
        if parameter.is_constexpr or value is None:
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
        "is_int8": "*i8" in source.signature.values(),
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


# Wide layers, of which one has an activation, a gate, rotation and a window.
_SHAPES = (
    Shape(dynamic=True, hidden=768, heads=12, head=64, inner=3072, layers=1),
    Shape(
        dynamic=True,
        hidden=384,
        heads=12,
        head=32,
        inner=1152,
        layers=1,
        gated=True,
        rotary=True,
        norms_first=True,
        window=9,
        has_positions=False,
    ),
    Shape(floats=True, hidden=384, heads=12, head=32, inner=1536, layers=1),
    # Heads of Gemma's width.
    Shape(dynamic=True, hidden=768, heads=3, head=256, inner=1152, layers=1),
)


def _of_heads() -> Iterator[Launch]:
    """Yield launches of a head: a linear layer in float32, and kernels for texts."""
    rows, numbers = torch.zeros(64, 384), torch.zeros(9, dtype=torch.int32)
    layer = Linear(weights=torch.zeros(768, 384), bias=torch.zeros(768), columns=768)
    yield linear_launch(layer, rows, torch.zeros(64, 768), count=numbers, tile=FLOAT_TILE)
    for pooling in ("first", "max", "mean", "weightedmean"):
        yield Launch(
            kernel=kernels.pool,
            grid=(8, 2),
            arguments={
                "states": rows,
                "starts": numbers,
                "out": rows,
                "width": 384,
                "stride": 384,
                "out_stride": 384,
                "size": 256,
                "pooling": pooling,
            },
        )


def launches(capability: int, *, is_short: bool) -> Iterator[Launch]:
    """Yield all different launches of some models, or one of each kernel of one model and size."""
    seen: set[Any] = set()
    if not is_short:
        yield from _of_heads()
    for shape in _SHAPES[:1] if is_short else _SHAPES:
        model = Model(packed_model(shape), torch.device("cpu"), capability)
        least = sorted({least for least, _ in TILES[capability]})
        for tokens in least[-1:] if is_short else [max(each, 16) for each in least]:
            for launch in Program(model, buffers_of(model, tokens), tokens).launches:
                source, options = source_of(launch)
                key: Any = (launch.kernel, "*i8" in source.signature.values())
                if not is_short:
                    key = repr((source.fn.fn, source.signature, source.constants, options))
                if key not in seen:
                    seen.add(key)
                    yield launch


if __name__ == "__main__":
    number = int(sys.argv[1])
    for each in launches(number, is_short=sys.argv[2:] != ["all"]):
        sys.stdout.write(json.dumps(compiled(each, number)) + "\n")
