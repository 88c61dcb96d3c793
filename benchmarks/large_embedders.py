"""Compare ways to run embedders of the shapes of Qwen3 and Gemma, in texts per second.

    python benchmarks/large_embedders.py --texts texts.txt [--rounds 3] [--only Qwen3]

`benchmarks/mixed_texts.py` writes such a file. Texts are cut after 64 words. The models have random
weights in bfloat16, and the tokenizer of all-MiniLM-L6-v2:

- "Qwen3-Embedding-0.6B": 28 layers of 1024 channels, the last token of a text,
- "EmbeddingGemma-300m": 24 layers of 768 channels, which attend in both directions, and the mean.

The ways are

- "qdqbert, native": `load` of the checkpoint, in INT8, without data,
- "sentence-transformers, float32" and "sentence-transformers, bfloat16".

Each way runs in a process, and they take turns with the same texts. Loading and a first turn are
not timed. Memory is what a process has after a turn, with what it has read of mapped files. The
model of qdqbert is packed by another process before.

Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from decoders import save_modules
from engines import worker
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.evidence.fidelity import all_cosines

WAYS = ("qdqbert, native", "sentence-transformers, float32", "sentence-transformers, bfloat16")
WORDS = 64
TEXTS = 16
QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_669,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
}
GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 262_144,
    "hidden_size": 768,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 1152,
    "max_position_embeddings": 2048,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "use_bidirectional_attention": True,
    "pad_token_id": 0,
}
MODELS = {
    "Qwen3-Embedding-0.6B": (QWEN3, "lasttoken"),
    "EmbeddingGemma-300m": (GEMMA, "mean_tokens"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=(), help="models whose names contain a word")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(json.loads(arguments.worker))
        return
    if not arguments.texts:
        parser.error("--texts is missing")
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}")
    print(f"{arguments.threads} threads, {arguments.rounds} rounds, {TEXTS} texts\n")
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    texts = [" ".join(line.split()[:WORDS]) for line in lines[:TEXTS]]
    with tempfile.TemporaryDirectory() as root:
        # Folders that `load` makes of checkpoints go with the others.
        os.environ["QDQBERT_CACHE"] = str(Path(root) / "cache")
        print("| model | way | texts/s | speed of qdqbert | cosine, worst | memory in MB |")
        print("|---|---|---|---|---|---|")
        for name, (config, pooling) in MODELS.items():
            if not arguments.only or any(word in name for word in arguments.only):
                save_model(config, pooling, folder := Path(root) / name)
                compare(name, folder, texts, arguments)
                shutil.rmtree(folder)


def save_model(config: dict[str, Any], pooling: str, folder: Path) -> None:
    """Save a model with random weights."""
    import torch
    from transformers import AutoConfig, AutoModel
    from transformers.initialization import no_init_weights

    from qdqbert.encoders.checkpoint.demo import demo_checkpoint

    found = AutoConfig.for_model(**config)
    with no_init_weights():
        model = AutoModel.from_config(found, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * 0.02
            # Norms of Gemma have weights around 0, and the others around 1.
            shift = float("norm" in name and config["model_type"] != "gemma3_text")
            parameter.copy_(drawn + shift)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_checkpoint() / file, folder / file)
    save_modules(folder, pooling)


def compare(name: str, folder: Path, texts: list[str], arguments: argparse.Namespace) -> None:
    """Print a row for each way."""
    import qdqbert

    qdqbert.load(folder, check=False).close()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    found, memory = {}, {}
    with contextlib.ExitStack() as stack:
        ask = {
            way: stack.enter_context(
                worker(
                    {"name": way, "folder": str(folder), "threads": arguments.threads},
                    script=__file__,
                )
            )
            for way in WAYS
        }
        for turn in range(arguments.rounds + 1):
            for way in WAYS:
                file = folder / f"{WAYS.index(way)}.npy"
                seconds = ask[way]({"texts": texts, "file": str(file)})
                if turn:
                    times[way].append(seconds)
                found[way] = np.load(file)
                memory[way] = int((folder / f"{file.name}.memory").read_text())
    own, float32 = times[WAYS[0]], found[WAYS[1]]
    for way in WAYS:
        ratio = statistics.median(b / a for a, b in zip(own, times[way], strict=True))
        cosines = all_cosines([float32], [found[way]])
        print(
            f"| {name} | {way} | {len(texts) / statistics.median(times[way]):.1f} | {ratio:.2f} "
            f"| {cosines.min():.4f} | {memory[way]:,} |",
            flush=True,
        )


def serve(way: dict[str, Any]) -> None:
    """Answer requests from stdin with the seconds of a turn."""
    encode = open_way(way)
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        vectors = encode(request["texts"])
        seconds = time.perf_counter() - begin
        np.save(request["file"], np.asarray(vectors, np.float32))
        used = psutil.Process().memory_full_info().pss // 2**20
        Path(f"{request['file']}.memory").write_text(str(used))
        print(json.dumps(seconds), flush=True)


def open_way(way: dict[str, Any]) -> Any:
    if way["name"].startswith("qdqbert"):
        import qdqbert

        return qdqbert.load(Path(way["folder"]), check=False, threads=way["threads"]).encode
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(way["threads"])
    dtype = way["name"].rpartition(" ")[2]
    given = {"dtype": getattr(torch, dtype)}
    return SentenceTransformer(way["folder"], device="cpu", model_kwargs=given).encode


if __name__ == "__main__":
    main()
