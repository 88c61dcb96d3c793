"""Folders to export: with prompts, with other tokenizers, with several outputs."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

import qdqbert
from conftest import ROBERTA_SPECIAL, TEXTS

SPECIAL = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}


def byte_level_bpe(*, prefix: bool = False) -> tokenizers.Tokenizer:
    """Return a tokenizer of RoBERTa's kind."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(ROBERTA_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def unigram(normalizer: Any = None) -> tokenizers.Tokenizer:
    """Return a tokenizer of XLM-RoBERTa's kind."""
    made = tokenizers.Tokenizer(models.Unigram())
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=200,
        special_tokens=list(ROBERTA_SPECIAL),
        unk_token="<unk>",
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return made


TOKENIZERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "bpe": byte_level_bpe,
    "bpe with a space before": lambda: byte_level_bpe(prefix=True),
    "unigram": unigram,
    "unigram with NFKC": lambda: unigram(normalizers.NFKC()),
}


@pytest.fixture(scope="session")
def with_tokenizer(tmp_path_factory, tiny_artifact) -> Callable[[str], Path]:
    """Return an embedder's folder whose tokenizer was replaced. Its ids fit the embeddings."""
    root = tmp_path_factory.mktemp("with_tokenizer")
    _, plain = tiny_artifact(family="roberta")

    def make(kind: str) -> Path:
        folder = root / kind.replace(" ", "-")
        if not folder.exists():
            shutil.copytree(plain, folder)
            wrapped = transformers.PreTrainedTokenizerFast(
                tokenizer_object=TOKENIZERS[kind](),
                model_input_names=["input_ids", "attention_mask"],
                **{f"{name}_token": token for name, token in SPECIAL.items()},
            )
            wrapped.save_pretrained(folder)
            (folder / "SHA256SUMS").unlink()
        return folder

    return make


PAIRS = list(itertools.pairwise(TEXTS[:40]))


@pytest.fixture(scope="session")
def of_pairs(checkpoints, tmp_path_factory) -> Callable[[str], Path]:
    """Quantize a checkpoint by its name on pairs of texts, and return the folder."""
    root = tmp_path_factory.mktemp("of_pairs")
    data = root / "pairs.tsv"
    rows = ["premise\thypothesis", *(f"{first}\t{second}" for first, second in PAIRS)]
    data.write_text("\n".join(rows))

    @functools.cache
    def make(name: str) -> Path:
        qdqbert.quantize(
            checkpoints(name),
            root / name,
            calibration_data=data,
            calibration=qdqbert.Calibration(samples=20),
            targets=["portable"],
            benchmark=False,
        )
        return root / name

    return make


@pytest.fixture(scope="session")
def logits_of() -> Callable[..., np.ndarray]:
    """Run a folder's graph on the ids of the library `tokenizers`, each text or pair alone."""

    def run(folder: Path, items: Sequence[Any]) -> np.ndarray:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        limit = json.loads((folder / "quantization.json").read_text())["max_length"]
        tokenizer.enable_truncation(limit)
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
        rows = []
        for item in items:
            encoding = tokenizer.encode(*([item] if isinstance(item, str) else item))
            values = {
                "input_ids": encoding.ids,
                "attention_mask": encoding.attention_mask,
                "token_type_ids": encoding.type_ids,
            }
            (logits,) = session.run(["logits"], {name: [ids] for name, ids in values.items()})
            rows.append(logits[0])
        return np.stack(rows)

    return run


@pytest.fixture
def with_settings(quantized, tmp_path) -> Callable[..., Path]:
    """Return a copy of the quantized embedder with settings of sentence-transformers."""

    def make(**settings: Any) -> Path:
        folder = tmp_path / "settings"
        shutil.copytree(quantized("sentence").directory, folder)
        path = folder / "config_sentence_transformers.json"
        path.write_text(json.dumps(settings))
        return folder

    return make
