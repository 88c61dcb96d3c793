"""Compile a module of LLVM IR, and call its functions."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import llvmlite.binding as llvm

from qdqbert.engines.native.instruction_set import InstructionSet
from qdqbert.engines.native.ir import Module

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()

# Types of arguments, by LLVM's names.
_KINDS: Mapping[str, Any] = {
    "ptr": ctypes.c_void_p,
    "i64": ctypes.c_int64,
    "float": ctypes.c_float,
}
_TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """A module as machine code.

    Attributes:
        code: The object file.
        arguments: LLVM's types of the arguments of each function, by its name.
    """

    code: bytes
    arguments: Mapping[str, list[str]]


def process_triple() -> str:
    """Return LLVM's name of this machine, such as `x86_64-unknown-linux-gnu`."""
    return str(llvm.get_process_triple())


def compile_module(module: Module, isa: InstructionSet) -> Compiled:
    """Return a module as machine code."""
    machine = _machine(isa)
    parsed = _optimized(module, machine)
    return Compiled(
        code=bytes(machine.emit_object(parsed)),
        arguments={
            name: [str(each) for each in function.arguments.values()]
            for name, function in module.functions.items()
        },
    )


def assembly(module: Module, isa: InstructionSet) -> str:
    """Return a module as assembly, to read it."""
    machine = _machine(isa)
    return str(machine.emit_assembly(_optimized(module, machine)))


class Library:
    """Compiled functions, ready to be called."""

    def __init__(self, compiled: Compiled, isa: InstructionSet) -> None:
        """Load functions that were compiled for an instruction set."""
        machine = _machine(isa)
        empty = llvm.parse_assembly("")
        empty.triple = machine.triple
        self._engine = llvm.create_mcjit_compiler(empty, machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(compiled.code))
        self._engine.finalize_object()
        self._arguments = compiled.arguments

    def has(self, name: str) -> bool:
        """Return whether there is a function of this name."""
        return name in self._arguments

    def function(self, name: str) -> Callable[..., None]:
        """Return a function; calling it releases Python's global lock.

        Pointers are passed as integers.
        """
        types = [_KINDS[each] for each in self._arguments[name]]
        prototype: Any = ctypes.CFUNCTYPE(None, *types)
        found = prototype(self._engine.get_function_address(name))
        # A thread may still be in the function when everything else is gone.
        found.owner = self
        called: Callable[..., None] = found
        return called


def _machine(isa: InstructionSet) -> Any:
    own = process_triple()
    triple = _TRIPLES.get(isa.architecture, own)
    # macOS says `arm64`.
    if triple.partition("-")[0] == own.partition("-")[0].replace("arm64", "aarch64"):
        triple = own
    target = llvm.Target.from_triple(triple)
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


def _optimized(module: Module, machine: Any) -> Any:
    parsed = llvm.parse_assembly(module.text())
    parsed.triple = machine.triple
    parsed.data_layout = str(machine.target_data)
    parsed.verify()
    # Kernels keep what loops change in memory of the stack. In registers, it is as fast as after
    # all passes, which take as long as the rest of the compiler.
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.run(parsed, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return parsed
