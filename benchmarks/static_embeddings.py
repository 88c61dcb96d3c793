"""Compare ways to compute static embeddings, with the time that tokenizing takes.

    python benchmarks/static_embeddings.py --texts texts.txt [--rounds 5]

`benchmarks/mixed_texts.py` writes such a file. The table has random rows of 256 channels for the
vocabulary of the packaged all-MiniLM-L6-v2. The ways are

- "qdqbert": `load` of the folder, in INT8,
- "sentence-transformers": `StaticEmbedding` in float32,
- "model2vec": `StaticModel.encode`, if the package is installed. It cuts texts after 512 tokens,
- "tokenizing alone": `encode_batch_fast` of the library tokenizers, for the same texts.

Each way runs in a process, and they take turns. Loading and a first turn are not timed. Times are
those of all cores, in microseconds a text: cores wait for nothing here.

Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
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

WAYS = ("qdqbert", "sentence-transformers", "model2vec", "tokenizing alone")
WIDTH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(json.loads(arguments.worker))
        return
    if not arguments.texts:
        parser.error("--texts is missing")
    texts = arguments.texts.read_text(encoding="utf-8").splitlines()
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}")
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        os.environ["QDQBERT_CACHE"] = str(Path(root) / "cache")
        tokens = save_model(folder := Path(root) / "model", texts)
        length = tokens / len(texts)
        print(f"{len(texts)} texts of {length:.0f} tokens, {arguments.rounds} rounds\n")
        has = importlib.util.find_spec("model2vec") is not None
        ways = [each for each in WAYS if has or each != "model2vec"]
        given = {"folder": str(folder), "texts": str(arguments.texts)}
        ask = stack.enter_context(workers(ways, script=__file__, **given))
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(arguments.rounds + 1):
            for way in ways:
                seconds = ask[way]({})
                if turn:
                    times[way].append(seconds)
    print("| way | us a text, all cores | by the time of qdqbert |")
    print("|---|---|---|")
    own = times[WAYS[0]]
    for way in ways:
        ratio = statistics.median(b / a for a, b in zip(own, times[way], strict=True))
        print(f"| {way} | {1e6 * statistics.median(times[way]) / len(texts):.1f} | {ratio:.2f} |")


def save_model(folder: Path, texts: list[str]) -> int:
    """Save a model as model2vec does, and return the number of tokens of texts."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer

    from qdqbert.encoders.checkpoint.demo import demo_checkpoint

    tokenizer = Tokenizer.from_file(str(demo_checkpoint() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    shape = (tokenizer.get_vocab_size(), WIDTH)
    rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    save_file({"embeddings": rows}, folder / "model.safetensors")
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True}
    (folder / "config.json").write_text(json.dumps(config))
    package = "sentence_transformers.models"
    kinds = (("StaticEmbedding", "."), ("Normalize", "1_Normalize"))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"{package}.{kind}"}
        for index, (kind, path) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    return sum(len(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False))


def serve(way: dict[str, Any]) -> None:
    """Answer requests from stdin with the seconds of all cores that a turn took."""
    encode = open_way(way["name"], way["folder"])
    texts = Path(way["texts"]).read_text(encoding="utf-8").splitlines()
    for _ in sys.stdin:
        begin = time.process_time()
        encode(texts)
        print(json.dumps(time.process_time() - begin), flush=True)


def open_way(name: str, folder: str) -> Callable[[list[str]], Any]:
    if name == "qdqbert":
        import qdqbert

        own = qdqbert.load(folder, check=False)
        return lambda texts: own.encode(texts)
    if name == "model2vec":
        package = importlib.import_module("model2vec")
        model = package.StaticModel.from_pretrained(folder)
        return lambda texts: model.encode(texts, use_multiprocessing=False)
    if name == "sentence-transformers":
        from sentence_transformers import SentenceTransformer

        embedder = SentenceTransformer(folder, device="cpu")
        return lambda texts: embedder.encode(texts, batch_size=1024, show_progress_bar=False)
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    return lambda texts: tokenizer.encode_batch_fast(texts, add_special_tokens=False)


if __name__ == "__main__":
    main()
