"""Make a tokenizer of spm.model, the vocabulary of DeBERTa-v2 and v3 as sentencepiece wrote it.

The file is a message of protobuf, of which a few fields are read. Texts are normalized by the table
that is in it, as sentencepiece does. transformers 5 leaves the table out, so that its tokens differ
in letters such as full-width ones.

Source: sentencepiece_model.proto of sentencepiece 0.2; `DebertaV2Converter` of transformers 4.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from qdqbert.common.errors import CheckpointError
from qdqbert.common.files import refuse_pointer
from qdqbert.common.protobuf_messages import fields_of
from qdqbert.data.tokenizing.tokenizer_files import raising, token_text

# Fields of the messages: of the model, a piece, the settings of the trainer, and the normalizer.
_PIECE, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3
_MODEL, _BYTES, _UNKNOWN = 3, 35, 40
_TABLE = 2
# Values: of pieces that no text has, of pieces that the user named, of a Unigram model.
_CONTROL, _NAMED, _UNIGRAM = 3, 4, 1
# The usual tokens of DeBERTa, by their roles. A vocabulary need not have the last one.
_TOKENS = {
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "unk_token": "[UNK]",
    "pad_token": "[PAD]",
    "mask_token": "[MASK]",
}


def read_sentencepiece(path: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Return DeBERTa's tokenizer with the vocabulary of a file of sentencepiece.

    `settings` are the content of tokenizer_config.json.

    Raises:
        CheckpointError: The file is missing or damaged, or has no Unigram model.
    """
    refuse_pointer(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"Cannot read {str(path)!r}: {error.strerror}.") from error
    try:
        return _tokenizer(data, settings, path)
    except CheckpointError:
        raise
    except (ValueError, struct.error) as error:
        raise CheckpointError(
            f"{str(path)!r} is damaged: {error}. Download or copy the checkpoint again."
        ) from error


def _tokenizer(data: bytes, settings: Mapping[str, Any], path: Path) -> tokenizers.Tokenizer:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for field, value in fields_of(data):
        if field == _PIECE:
            pieces.append(_piece(dict(fields_of(value))))
        elif field == _TRAINER:
            trainer = dict(fields_of(value))
        elif field == _NORMALIZER:
            normalizer = dict(fields_of(value))
    if not pieces:
        raise ValueError("it has no pieces of words")
    kind = trainer.get(_MODEL, _UNIGRAM)
    if kind != _UNIGRAM:
        raise CheckpointError(
            f"{str(path)!r} is of the type {kind} of sentencepiece, and only 1, Unigram, is read. "
            "Write tokenizer.json with transformers: "
            "`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`."
        )
    vocabulary = [(text, score) for text, score, _ in pieces]
    with raising(path):
        made = tokenizers.Tokenizer(
            models.Unigram(
                vocabulary,
                unk_id=trainer.get(_UNKNOWN, 0),
                byte_fallback=bool(trainer.get(_BYTES, 0)),
            )
        )
        made.normalizer = normalizers.Sequence(_normalizers(settings, normalizer.get(_TABLE)))
        blanks = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
        marks = [pre_tokenizers.Punctuation(behavior="isolated")]
        by_marks = settings.get("split_by_punct") is True
        made.pre_tokenizer = pre_tokenizers.Sequence([*(marks if by_marks else ()), blanks])
        made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    made.add_tokens(
        [
            AddedToken(text, normalized=False, special=each == _CONTROL)
            for text, _, each in pieces
            if each in (_CONTROL, _NAMED)
        ]
    )
    named = [token_text(settings.get(role)) or usual for role, usual in _TOKENS.items()]
    made.add_special_tokens([AddedToken(each, normalized=False) for each in named])
    first, last = named[:2]
    made.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(each, made.token_to_id(each)) for each in (first, last)],
    )
    return made


def _normalizers(settings: Mapping[str, Any], table: Any) -> list[normalizers.Normalizer]:
    return [
        *([normalizers.Lowercase()] if settings.get("do_lower_case") is True else ()),
        *([normalizers.Precompiled(bytes(table))] if table else ()),
        normalizers.Replace(Regex(" {2,}"), " "),
        # The table makes blanks of other letters.
        normalizers.Strip(),
    ]


def _piece(fields: Mapping[int, Any]) -> tuple[str, float, int]:
    """Return the text, the score and the kind of a piece."""
    (score,) = struct.unpack("<f", fields.get(_SCORE, b"\0\0\0\0"))
    if not math.isfinite(score):
        raise ValueError(f"a piece has the score {score}")
    return bytes(fields.get(_TEXT, b"")).decode(), score, fields.get(_KIND, 1)
