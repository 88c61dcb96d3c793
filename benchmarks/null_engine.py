"""Measure what Python allows: texts and requests a second of a model that computes almost nothing.

    python benchmarks/null_engine.py [--texts 40000] [--requests 20000] [--connections 200]

The model is BERT with 1 layer of 16 channels and random weights, on the native engine. What is left
is reading texts, tokenizing, scheduling and writing answers, which one process does for all of its
cores.

- `encode` is `load(...).encode` of texts of 4 to 10 words, in texts a second.
- `tokenizers` is the library alone, on the same texts.
- The server answers one text a request. Client and server share the cores, so the row is requests
  per second of CPU time of the server, which is about what one process can answer.

Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors

import qdqbert
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from serving import Client, server

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--texts", type=int, default=40_000)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=200)
    arguments = parser.parse_args()
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}\n")
    chosen = random.Random(0)
    words = [
        "".join(chosen.choices("abcdefghijklmnop", k=chosen.randint(2, 6))) for _ in range(500)
    ]
    texts = [
        " ".join(chosen.choices(words, k=chosen.randint(4, 10))) for _ in range(arguments.texts)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "null"
        _save(folder, words)
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        print("| what | a second |\n|---|---|")
        print(f"| tokenizers, texts | {_rate(backend.encode_batch_fast, texts):.0f} |")
        with qdqbert.load(folder) as model:
            print(f"| encode, texts | {_rate(model.encode, texts):.0f} |", flush=True)
            few = texts[:2000]
            vectors = [base64.b64encode(each.tobytes()).decode() for each in model.encode(few)]
        with server(str(folder)) as (port, process):
            client = Client(port, folder.name, few, vectors, 1)
            rate = asyncio.run(_requests_per_cpu_second(client, process, arguments))
        print(f"| server, requests | {rate:.0f} |")
        print(f"| wrong or lost answers | {client.wrong} of {client.asked} |")


def _save(folder: Path, words: Sequence[str]) -> None:
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *dict.fromkeys(words)])}
    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=16,
    )
    transformers.BertModel(config).save_pretrained(folder)


def _rate(function: Callable[[list[str]], object], texts: list[str]) -> float:
    """Return the inputs per second of a function, the best of some rounds."""
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        function(texts)
        seconds.append(time.perf_counter() - start)
    return len(texts) / min(seconds)


async def _requests_per_cpu_second(
    client: Client, process: psutil.Process, arguments: argparse.Namespace
) -> float:
    await client.one_by_one(100)
    before = process.cpu_times()
    await client.saturate(arguments.connections, arguments.requests, process)
    after = process.cpu_times()
    seconds: float = after.user + after.system - before.user - before.system
    return float(arguments.requests) / seconds


if __name__ == "__main__":
    main()
