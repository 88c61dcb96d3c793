"""Compile a module of LLVM IR, and call its functions."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import llvmlite
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
        code: Object files, by the digest of all that they depend on: one for each function, as most
            functions of a model are those of other models, or one for all where LLVM does not link
            them.
        arguments: LLVM's types of the arguments of each function, by its name.
    """

    code: Mapping[str, bytes]
    arguments: Mapping[str, list[str]]


def process_triple() -> str:
    """Return LLVM's name of this machine, such as `x86_64-unknown-linux-gnu`."""
    return str(llvm.get_process_triple())


def compile_module(
    module: Module, isa: InstructionSet, known: Mapping[str, bytes] | None = None
) -> Compiled:
    """Return a module as machine code.

    Args:
        module: The functions.
        isa: The instruction set.
        known: Functions that were compiled before, by their digests.
    """
    machine, known = _machine(isa), known or {}
    kind = f"{llvmlite.__version__}\n{machine.triple}\n{isa.cpu}\n{isa.features}"
    code = {}
    texts = module.parts() if _links_files(machine.triple) else [module.text()]
    for text in texts:
        digest = hashlib.sha256(f"{kind}\n{text}".encode()).hexdigest()
        code[digest] = known.get(digest) or machine_code(text, machine)
    return Compiled(
        code=code,
        arguments={
            name: [str(each) for each in function.arguments.values()]
            for name, function in module.functions.items()
        },
    )


def machine_code(text: str, machine: Any) -> bytes:
    """Return LLVM IR as an object file."""
    return bytes(machine.emit_object(_optimized(text, machine)))


def assembly(module: Module, isa: InstructionSet) -> str:
    """Return a module as assembly, to read it."""
    machine = _machine(isa)
    return str(machine.emit_assembly(_optimized(module.text(), machine)))


class Library:
    """Compiled functions, ready to be called."""

    def __init__(self, compiled: Compiled, isa: InstructionSet) -> None:
        """Load functions that were compiled for an instruction set."""
        machine = _machine(isa)
        empty = llvm.parse_assembly("")
        empty.triple = machine.triple
        self._engine = llvm.create_mcjit_compiler(empty, machine)
        for code in compiled.code.values():
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
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
    # Of several object files with position-independent code, LLVM's loader finds the constants of
    # the first one only. Machine code is loaded for its place in memory anyway.
    reloc = "static" if _links_files(triple) else "pic"
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=3, reloc=reloc, codemodel="jitdefault", jit=True
    )


def _links_files(triple: str) -> bool:
    """Return whether functions have an object file each, which LLVM's loader links."""
    # Elsewhere, it has not been tried.
    return triple.startswith("x86_64") and "linux" in triple


def _optimized(text: str, machine: Any) -> Any:
    parsed = llvm.parse_assembly(text)
    parsed.triple = machine.triple
    parsed.data_layout = str(machine.target_data)
    parsed.verify()
    # Kernels keep what loops change in memory of the stack. In registers, it is as fast as after
    # all passes, which take as long as the rest of the compiler.
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.run(parsed, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return parsed
