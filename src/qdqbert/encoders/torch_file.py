"""Tensors of a file that `torch.save` wrote, read without torch and without running anything.

The file is a zip archive without compression. Its `data.pkl` is a pickle: a program for a machine
with a stack, which makes the dict of tensors. Only the opcodes of such a dict are known here. A
pickle refers to functions and classes by name, and `_GLOBALS` has all names that are known: none is
imported or called. The values of the tensors are in one entry for each storage.

Sources: torch/serialization.py and torch/_weights_only_unpickler.py, torch 2.13; pickletools.py.
"""

from __future__ import annotations

import dataclasses
import math
import pickletools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from qdqbert.common.errors import CheckpointError
from qdqbert.common.safetensors_header import are_sizes

OLD_PICKLE = b"\x80"
"""The first byte of files that torch wrote before version 1.6."""

Bytes = NDArray[np.uint8]
Refuse = Callable[[str], CheckpointError]

# Elements of storages: safetensors' name of the type, and the size in bytes.
_STORAGES: Mapping[str, tuple[str, int]] = {
    "torch.DoubleStorage": ("F64", 8),
    "torch.FloatStorage": ("F32", 4),
    "torch.HalfStorage": ("F16", 2),
    "torch.BFloat16Storage": ("BF16", 2),
    "torch.LongStorage": ("I64", 8),
    "torch.IntStorage": ("I32", 4),
    "torch.ShortStorage": ("I16", 2),
    "torch.CharStorage": ("I8", 1),
    "torch.ByteStorage": ("U8", 1),
    "torch.BoolStorage": ("BOOL", 1),
}
_DICT, _TENSOR, _PARAMETER = (
    "collections.OrderedDict",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
)
_GLOBALS = frozenset({*_STORAGES, _DICT, _TENSOR, _PARAMETER})
# A tensor takes about 300 bytes of a pickle. A byte takes up to 64 bytes of memory, and 2 us.
_LARGEST_PICKLE, _MOST_ENTRIES = 2_000_000, 50_000
# Tensors may share a storage: a table of words is stored under up to four names.
_MOST_SHARED = 16
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_BYTE_ORDERS: Mapping[bytes, Literal["<", ">"]] = {b"little": "<", b"big": ">"}


@dataclasses.dataclass(frozen=True, eq=False)
class _Global:
    name: str


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Storage:
    """Elements of one type and size: an entry of the archive, from the byte `start` of the file."""

    kind: str
    size: int
    start: int
    count: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Tensor:
    """A view of a storage. `offset` and `strides` are numbers of elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch(
    data: Bytes, dtypes: Mapping[str, np.dtype[Any]], damaged: Refuse, refused: Refuse
) -> Iterator[tuple[str, str, NDArray[Any] | None]]:
    """Yield name, type and array of each tensor.

    The arrays are views of `data`. Tensors of other types than `dtypes` have none.

    Args:
        data: The bytes of the file.
        dtypes: numpy's types by the names of safetensors.
        damaged: Returns the error with a reason, such as "it is too short".
        refused: Returns the error with what is not read, such as "it is compressed".

    Raises:
        CheckpointError: The file is damaged, or holds anything but a dict of tensors.
    """
    if data[: len(OLD_PICKLE)].tobytes() == OLD_PICKLE:
        raise refused("is a pickle as torch wrote it before version 1.6")
    entries = _entries(data, damaged, refused)
    pickles = [name for name in entries if name.endswith(b"/data.pkl")]
    if len(pickles) != 1:
        raise damaged("it has no data.pkl, or several")
    start = pickles[0].removesuffix(b"data.pkl")

    def content(name: str, limit: int) -> bytes | None:
        place = entries.get(start + name.encode())
        if place is not None and place[1] > limit:
            raise damaged(f"its {name} has {place[1]} bytes, and at most {limit} are read")
        return None if place is None else data[place[0] : place[0] + place[1]].tobytes()

    # Torch wrote no byte order before version 2.1.
    named = content("byteorder", limit=100)
    order = _BYTE_ORDERS.get(b"little" if named is None else named)
    if order is None:
        raise damaged("its byteorder is neither little nor big")

    def storage(found: object) -> _Storage:
        match found:
            case ("storage", _Global(name=name), str() as key, str(), int() as count):
                kind, size = _STORAGES.get(name, ("", 0))
                place = entries.get(start + f"data/{key}".encode(errors="replace"))
            case _:
                raise TypeError("a storage with wrong fields")
        if not size or place is None or place[1] != count * size:
            raise TypeError(f"storage {key!r:.40} is missing, or has another size")
        return _Storage(kind=kind, size=size, start=place[0], count=count)

    tensors = _run(content("data.pkl", _LARGEST_PICKLE) or b"", storage, damaged, refused)
    taken = 0
    for name, tensor in tensors.items():
        if not isinstance(tensor, _Tensor) or not isinstance(name, str):
            raise refused(f"holds {name!r:.80}, which is no tensor")
        kind, size = tensor.storage.kind, tensor.storage.size
        taken += math.prod(tensor.shape) * size
        if taken > _MOST_SHARED * len(data):
            raise damaged(f"tensor {name!r:.80} has more values than the file")
        if kind not in dtypes:
            yield name, kind, None
            continue
        yield (
            name,
            kind,
            np.ndarray(
                tensor.shape,
                dtypes[kind].newbyteorder(order),
                buffer=data,
                offset=tensor.storage.start + tensor.offset * size,
                strides=[each * size for each in tensor.strides],
            ),
        )


def _entries(data: Bytes, damaged: Refuse, refused: Refuse) -> dict[bytes, tuple[int, int]]:
    """Return where the content of each entry of a zip archive starts, and its size in bytes.

    Source: APPNOTE.TXT 6.3.10 of PKWARE, sections 4.3.7 to 4.3.16.
    """

    def fields(form: str, at: int, signature: bytes) -> tuple[Any, ...]:
        size = struct.calcsize(f"<4s{form}")
        if not 0 <= at <= len(data) - size or data[at : at + 4].tobytes() != signature:
            raise damaged("it is no zip archive, or is cut off")
        return struct.unpack(f"<4s{form}", data[at : at + size].tobytes())[1:]

    # A comment of up to 65,535 bytes may follow the last record.
    tail = max(0, len(data) - 22 - 65_535)
    end = tail + data[tail:].tobytes().rfind(b"PK\5\6")
    *_, count, _, at, _ = fields("4H2LH", end, b"PK\5\6")
    if count == 0xFFFF or at == 0xFFFFFFFF:
        _, place, _ = fields("LQL", end - 20, b"PK\6\7")
        *_, count, _, at = fields("Q2H2L4Q", place, b"PK\6\6")
    if count > _MOST_ENTRIES:
        raise damaged(f"it has {count} entries, and at most {_MOST_ENTRIES} are read")
    found = {}
    for _ in range(count):
        _, _, flags, method, _, _, _, stored, size, long, more, comment, *_, local = fields(
            "6H3L5H2L", at, b"PK\1\2"
        )
        at += 46
        name = data[at : at + long].tobytes()
        extra = data[at + long : at + long + more].tobytes()
        at += long + more + comment
        if 0xFFFFFFFF in (size, stored, local):
            size, stored, local = _large(extra, size, stored, local, damaged)
        *_, own, other = fields("5H3L2H", local, b"PK\3\4")
        start = local + 30 + own + other
        if data[local + 30 : local + 30 + own].tobytes() != name or name in found:
            raise damaged(f"its entry {name!r:.80} is there twice, or has two names")
        if flags & 1 or method or size != stored:
            raise refused(f"is compressed or encrypted: {name!r:.80}")
        if start + size > len(data):
            raise damaged(f"its entry {name!r:.80} is cut off")
        found[name] = start, size
    return found


def _large(
    extra: bytes, size: int, stored: int, local: int, damaged: Refuse
) -> tuple[int, int, int]:
    """Return sizes and the place of an entry, those that need 64 bits from its extra field."""
    at, wanted = 0, (size, stored, local)
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        at += 4
        count = wanted.count(0xFFFFFFFF)
        if kind == 1 and at + 8 * count <= len(extra):
            values = iter(struct.unpack_from(f"<{count}Q", extra, at))
            size, stored, local = (next(values) if each == 0xFFFFFFFF else each for each in wanted)
            return size, stored, local
        at += length
    raise damaged("an entry has no size")


def _run(
    code: bytes, storage: Callable[[object], _Storage], damaged: Refuse, refused: Refuse
) -> dict[str, object]:
    """Return the dict that a pickle makes.

    For `damaged` and `refused`, see `read_torch`.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def pop(count: int | None = None) -> list[Any]:
        """Take values from the stack, as many as there are after the last mark by default."""
        start = marks.pop() if count is None else len(stack) - count
        if start < 0:
            raise IndexError
        found = stack[start:]
        del stack[start:]
        return found

    try:
        argument: Any
        for opcode, argument, _ in pickletools.genops(code):
            match opcode.name:
                case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE":
                    stack.append(argument)
                case "NONE" | "NEWTRUE" | "NEWFALSE":
                    stack.append(_CONSTANTS[opcode.name])
                case "EMPTY_DICT":
                    stack.append({})
                case "EMPTY_LIST":
                    stack.append([])
                case "EMPTY_TUPLE":
                    stack.append(())
                case "BINPUT" | "LONG_BINPUT":
                    memo[argument] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[argument])
                case "MARK":
                    marks.append(len(stack))
                case "TUPLE":
                    stack.append(tuple(pop()))
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    stack.append(tuple(pop(int(opcode.name[-1]))))
                case "APPEND" | "APPENDS":
                    values = pop(1 if opcode.name == "APPEND" else None)
                    _checked(stack[-1], list).extend(values)
                case "SETITEM" | "SETITEMS":
                    values = pop(2 if opcode.name == "SETITEM" else None)
                    _add_(_checked(stack[-1], dict), values)
                case "GLOBAL":
                    name = str(argument).replace(" ", ".")
                    if name not in _GLOBALS:
                        raise refused(f"refers to `{name:.80}`")
                    stack.append(_Global(name))
                case "BINPERSID":
                    stack.append(storage(*pop(1)))
                case "REDUCE":
                    function, arguments = pop(2)
                    stack.append(_made(function, arguments, refused))
                case "BUILD":
                    # Versions of modules: a dict of tensors is the same without them.
                    pop(1)
                    _checked(stack[-1], dict)
                case "PROTO" | "STOP":
                    pass
                case _:
                    raise refused(f"has the opcode {opcode.name}")
        (found,) = stack
        return dict(_checked(found, dict))
    except CheckpointError:
        raise
    except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise damaged(f"its data.pkl makes no dict of tensors: {error!s:.80}") from error


def _checked(value: Any, kind: type) -> Any:
    # Texts of such values may be too deep or too long to be shown.
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _add_(found: dict[Any, Any], values: list[Any]) -> None:
    """Add keys and values, which alternate, to a dict."""
    for key, value in zip(values[::2], values[1::2], strict=True):
        if type(key) not in (str, int) or key in found:
            raise TypeError(f"a key of type {type(key).__name__}, or one that is there twice")
        found[key] = value


def _made(function: object, arguments: object, refused: Refuse) -> object:
    """Return what a function of a pickle makes."""
    name = function.name if isinstance(function, _Global) else None
    match arguments:
        case () if name == _DICT:
            return {}
        case (_Tensor() as tensor, bool(), dict()) if name == _PARAMETER:
            return tensor
        case (
            _Storage() as storage,
            int() as offset,
            tuple() as shape,
            tuple() as strides,
            bool(),
            dict(),
            *flags,
        ) if name == _TENSOR:
            if any(flags):
                raise refused("has tensors with negative or conjugate values")
            if not are_sizes([offset, *shape, *strides]) or not len(shape) == len(strides) <= 8:
                raise TypeError("a tensor with a wrong shape")
            steps = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
            end = offset + (1 + steps if all(shape) else 0)
            if end > storage.count or not are_sizes([math.prod(each or 1 for each in shape)]):
                raise TypeError("a tensor that is larger than its storage")
            return _Tensor(storage=storage, offset=offset, shape=shape, strides=strides)
    raise TypeError(f"wrong arguments of {name}")
