"""Compare ways to choose among 10 labels of a call, in texts per second.

    python benchmarks/labels.py [--layers 12] [--texts texts.txt] [--rounds 3]

`benchmarks/mixed_texts.py` writes such a file. Texts are cut after 50 words; without a file, they
are 50 words of the tokenizer. The model has the shape of DeBERTa-v3-base for natural language
inference, or of the small one with 6 layers, random weights and the tokenizer of all-MiniLM-L6-v2.
The ways are

- "qdqbert, native": `load` of the checkpoint, in INT8, without data,
- "transformers, float32": its pipeline "zero-shot-classification" as it is, a pair at a time,
- "transformers, float32, batches": the same with `batch_size=10`, a text at a time.

Each way runs in a process, and they take turns with the same texts. Loading and a first turn are
not timed. The last column is the largest difference of the probability of a label to the first way
in float32.

Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from engines import workers
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.encoders.checkpoint.demo import demo_checkpoint

WAYS = ("qdqbert, native", "transformers, float32", "transformers, float32, batches")
WORDS = 50
TEXTS = 2
LABELS = (
    *("politics", "sports", "business", "science", "travel", "cooking", "music", "weather"),
    *("urgent request", "complaint about a delivery"),
)
DEBERTA: dict[str, Any] = {
    "model_type": "deberta-v2",
    "vocab_size": 128_100,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "pad_token_id": 0,
    "id2label": {0: "entailment", 1: "neutral", 2: "contradiction"},
    "label2id": {"entailment": 0, "neutral": 1, "contradiction": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(json.loads(arguments.worker))
        return
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}")
    print(f"{arguments.threads} threads, {arguments.rounds} rounds, {TEXTS} texts, ", end="")
    print(f"{arguments.layers} layers\n")
    with tempfile.TemporaryDirectory() as root:
        # Folders that `load` makes of checkpoints go with the others.
        os.environ["QDQBERT_CACHE"] = str(Path(root) / "cache")
        print("| way | texts/s | speed of qdqbert | probability, difference |")
        print("|---|---|---|---|")
        save_model(folder := Path(root) / "nli", arguments.layers)
        compare(folder, read_texts(arguments.texts), arguments)


def read_texts(path: Path | None) -> list[str]:
    if path is not None:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [" ".join(line.split()[:WORDS]) for line in lines[:TEXTS]]
    vocabulary = json.loads((demo_checkpoint() / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(each for each in vocabulary if each.isalpha() and each.islower())
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(words, WORDS)) for _ in range(TEXTS)]


def save_model(folder: Path, layers: int) -> None:
    """Save a model with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(0)
    config = AutoConfig.for_model(**DEBERTA, num_hidden_layers=layers)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_checkpoint() / file, folder / file)


def compare(folder: Path, texts: list[str], arguments: argparse.Namespace) -> None:
    """Print a row for each way."""
    import qdqbert

    qdqbert.load(folder, check=False).close()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    found: dict[str, np.ndarray] = {}
    given = {"folder": str(folder), "threads": arguments.threads}
    with workers(WAYS, script=__file__, **given) as ask:
        for turn in range(arguments.rounds + 1):
            for way in WAYS:
                file = folder / f"{WAYS.index(way)}.json"
                seconds = ask[way]({"texts": texts, "file": str(file)})
                if turn:
                    times[way].append(seconds)
                found[way] = np.array(json.loads(file.read_text()))
    own, float32 = times[WAYS[0]], found[WAYS[1]]
    for way in WAYS:
        ratio = statistics.median(b / a for a, b in zip(own, times[way], strict=True))
        off = np.abs(found[way] - float32).max()
        speed = len(texts) / statistics.median(times[way])
        print(f"| {way} | {speed:.2f} | {ratio:.2f} | {off:.0e} |", flush=True)


def serve(way: dict[str, Any]) -> None:
    """Answer requests from stdin with the seconds of a turn."""
    classify = open_way(way)
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        answers = classify(request["texts"])
        seconds = time.perf_counter() - begin
        scores = [dict(zip(each["labels"], each["scores"], strict=True)) for each in answers]
        rows = [[each[label] for label in LABELS] for each in scores]
        Path(request["file"]).write_text(json.dumps(rows))
        print(json.dumps(seconds), flush=True)


def open_way(way: dict[str, Any]) -> Callable[[list[str]], Any]:
    name = way["name"]
    if name.startswith("qdqbert"):
        import qdqbert

        folder = Path(way["folder"])
        model = qdqbert.load(
            folder, task="zero-shot-classification", check=False, threads=way["threads"]
        )
        return lambda texts: model(texts, LABELS)
    import torch
    import transformers

    torch.set_num_threads(way["threads"])
    pipeline = transformers.pipeline(
        "zero-shot-classification", way["folder"], device="cpu", dtype=torch.float32
    )
    size = len(LABELS) if name.endswith("batches") else 1
    return lambda texts: pipeline(texts, candidate_labels=list(LABELS), batch_size=size)


if __name__ == "__main__":
    main()
