"""Write spm.model, the vocabulary of sentencepiece, without sentencepiece."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from conftest import LETTERS, WORDS

NORMAL, UNKNOWN, CONTROL, NAMED = 1, 2, 3, 4
Piece = tuple[str, float, int]
SPECIAL: tuple[Piece, ...] = (
    ("[PAD]", 0.0, CONTROL),
    ("[CLS]", 0.0, CONTROL),
    ("[SEP]", 0.0, CONTROL),
    ("[UNK]", 0.0, UNKNOWN),
)


def pieces() -> list[Piece]:
    """Return special pieces, letters and words."""
    letters = [(each, -8.0, NORMAL) for each in ("▁", *LETTERS)]
    return [*SPECIAL, *letters, *((f"▁{word}", -3.0, NORMAL) for word in dict.fromkeys(WORDS))]


def spm_bytes(vocabulary: Sequence[Piece], *, kind: int = 1, table: bytes = b"") -> bytes:
    """Return the content of a file of sentencepiece.

    Args:
        vocabulary: Texts of the pieces, their scores and kinds.
        kind: Type of the model: 1 for Unigram.
        table: Table of the normalizer.
    """
    content = b""
    for text, score, each in vocabulary:
        inner = (
            field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + number(each)
        )
        content += field(1, inner)
    unknown = next((i for i, (_, _, each) in enumerate(vocabulary) if each == UNKNOWN), 0)
    trainer = b"\x18" + number(kind) + number(40 << 3) + number(unknown)
    return content + field(2, trainer) + field(3, field(2, table) if table else b"")


def write_spm(folder: Path) -> Path:
    """Write the vocabulary and the settings of a tokenizer, as in microsoft/deberta-v3-base."""
    folder.mkdir(exist_ok=True)
    (folder / "spm.model").write_bytes(spm_bytes(pieces()))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    return folder


def field(index: int, content: bytes) -> bytes:
    """Return a field of a message of protobuf that has bytes."""
    return number(index << 3 | 2) + number(len(content)) + content


def number(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])
