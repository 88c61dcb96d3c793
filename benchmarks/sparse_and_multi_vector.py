r"""Compare ways to compute sparse embeddings and vectors of tokens, in texts per second.

    python benchmarks/sparse_and_multi_vector.py --texts texts.txt [--splade FOLDER] [--rounds 3]

`benchmarks/mixed_texts.py` writes such a file. Texts are cut after 64 words, because the scores of
a vocabulary for a batch of long texts take gigabytes outside of the native engine. The models are

- FOLDER, a SPLADE checkpoint, if one is given,
- the packaged all-MiniLM-L6-v2, and a model of BERT-base's size with random weights, with the head
  of SPLADE, whose weights are random and whose bias leaves 100 words of a text a weight,
- both with that of ColBERT: 128 random channels for each token, without punctuation.

The ways are

- "qdqbert, native": `load` of the checkpoint, without data (target `native-dynamic`),
- "sentence-transformers": `SparseEncoder` and `MultiVectorEncoder` in float32,
- "fastembed": `SparseTextEmbedding` and `LateInteractionTextEmbedding` in float32, in batches of 32
  texts, on the graph that `load(precision="float")` writes. Left out if it is not installed.

Each way runs in a process, and they take turns with the same texts, as documents. Loading and a
first turn are not timed. The last column is the worst cosine of 16 texts to sentence-transformers,
of all their vectors together.

Needs `pip install 'qdqbert[benchmarks]'`. fastembed 0.9 asks for an older huggingface_hub, and
runs with a newer one: `pip install --no-deps fastembed loguru mmh3 py-rust-stemmers`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engines import random_base, worker
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores

Kind = Literal["sparse-embedding", "multi-vector-embedding"]
Arrays = list[NDArray[np.float32]]
Way = tuple[Callable[[list[str]], Any], Callable[[Any], Arrays]]
"""What computes documents' vectors, and what makes an array for each text of the result."""

WAYS = ("qdqbert, native", "sentence-transformers", "fastembed")
# Names of models with these heads that fastembed knows.
FASTEMBED = {
    "sparse-embedding": "prithivida/Splade_PP_en_v1",
    "multi-vector-embedding": "colbert-ir/colbertv2.0",
}
# Ids 1 and 2 of BERT's vocabulary, with which fastembed marks queries and documents.
MARKERS = ("[unused0]", "[unused1]")
TOKENS, CHANNELS, WORDS = 256, 128, 100
# Words of a text.
LONGEST = 64
COMPARED = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A checkpoint.

    Attributes:
        name: Its name in the table.
        kind: Its task.
        folder: A folder of sentence-transformers.
        count: Number of texts in a turn.
    """

    name: str
    kind: Kind
    folder: Path
    count: int


def main() -> None:
    arguments = parse()
    if arguments.worker:
        serve(json.loads(arguments.worker))
        return
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}")
    print(f"{arguments.threads} threads, {arguments.rounds} rounds\n")
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    texts = [" ".join(line.split()[:LONGEST]) for line in lines]
    with tempfile.TemporaryDirectory() as name:
        # Folders that `load` makes of checkpoints go with the others.
        os.environ["QDQBERT_CACHE"] = str(Path(name) / "cache")
        print("| model | way | texts/s | speed of qdqbert | cosine, worst |")
        print("|---|---|---|---|---|")
        for model in models(arguments, Path(name), texts):
            compare(model, texts, arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--splade", type=Path, help="folder of a SPLADE checkpoint")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=(), help="models whose names contain a word")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not (arguments.texts or arguments.worker):
        parser.error("--texts is missing")
    return arguments


def models(arguments: argparse.Namespace, root: Path, texts: Sequence[str]) -> Iterator[Model]:
    """Make the checkpoints, each when it is needed."""
    from qdqbert.encoders.checkpoint.demo import demo_checkpoint

    if arguments.splade and is_wanted("SPLADE, given", arguments.only):
        yield Model(
            name="SPLADE, given", kind="sparse-embedding", folder=arguments.splade, count=256
        )
    heads: dict[str, tuple[Kind, Any]] = {
        "SPLADE": ("sparse-embedding", save_splade),
        "ColBERT": ("multi-vector-embedding", save_colbert),
    }
    for size, count in {"all-MiniLM-L6-v2": 128, "BERT-base": 32}.items():
        for head, (kind, save) in heads.items():
            name = f"{head}, {size}"
            if is_wanted(name, arguments.only):
                base = random_base(root) if size == "BERT-base" else demo_checkpoint()
                folder = root / name.replace(", ", "-")
                save(base, folder, texts[:64])
                yield Model(name=name, kind=kind, folder=folder, count=count)


def is_wanted(name: str, words: Sequence[str]) -> bool:
    return not words or any(word in name for word in words)


def save_splade(base: Path, folder: Path, texts: Sequence[str]) -> None:
    """Give an encoder the head of SPLADE, with a bias that leaves few words a weight."""
    import torch
    from sentence_transformers import SparseEncoder
    from sentence_transformers.sparse_encoder.modules import SpladePooling
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForMaskedLM.from_pretrained(base, dtype=torch.float32).eval()
    largest = []
    with torch.inference_mode():
        for text in texts:
            inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=TOKENS)
            largest.append(model(**inputs).logits[0].amax(dim=0))
    scores = torch.stack(largest).flatten()
    bias = -float(scores.topk(WORDS * len(texts)).values[-1])
    for parameter in {model.cls.predictions.bias, model.cls.predictions.decoder.bias}:
        parameter.data.fill_(bias)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
        modules = [transformer_of(SparseEncoder(scratch, device="cpu")), SpladePooling("max")]
    SparseEncoder(modules=modules, device="cpu").save_pretrained(str(folder))


def transformer_of(model: Any) -> Any:
    """Return the first module of a model, for texts of `TOKENS` tokens."""
    model.max_seq_length = TOKENS
    return model[0]


def save_colbert(base: Path, folder: Path, texts: Sequence[str]) -> None:
    """Give an encoder the head of ColBERT."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    del texts
    torch.manual_seed(0)
    transformer = Transformer(str(base), max_seq_length=TOKENS)
    transformer.tokenizer.add_special_tokens({"additional_special_tokens": list(MARKERS)})
    model = MultiVectorEncoder(
        modules=[
            transformer,
            Dense(
                transformer.get_embedding_dimension(),
                CHANNELS,
                bias=False,
                activation_function=torch.nn.Identity(),
                module_input_name="token_embeddings",
            ),
            MultiVectorMask(list(string.punctuation)),
            Normalize("token_embeddings"),
        ],
        prompts=dict(zip(("query", "document"), MARKERS, strict=True)),
        device="cpu",
    )
    model.save_pretrained(str(folder), create_model_card=False)
    # fastembed's ColBERT passes no type of the token that it adds.
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def compare(model: Model, texts: Sequence[str], arguments: argparse.Namespace) -> None:
    """Print the rows of a model."""
    ways = [each for each in WAYS if each != "fastembed" or importlib.util.find_spec("fastembed")]
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as name:
        outputs = {way: Path(name) / f"{index}.npz" for index, way in enumerate(ways)}
        asked = {
            way: stack.enter_context(
                worker(
                    {
                        "name": way,
                        "kind": model.kind,
                        "folder": str(model.folder),
                        "threads": arguments.threads,
                        "output": str(outputs[way]),
                    },
                    script=__file__,
                )
            )
            for way in ways
        }
        for ask in asked.values():
            ask({"texts": texts[:COMPARED]})
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(arguments.rounds):
            for way, ask in asked.items():
                seconds = ask({"texts": texts[COMPARED : COMPARED + model.count]})
                rates[way].append(model.count / seconds)
        vectors = {way: list(np.load(path).values()) for way, path in outputs.items()}
    for way in ways:
        pairs = zip(rates[WAYS[0]], rates[way], strict=True)
        ratio = statistics.median(own / other for own, other in pairs)
        cosine = min(map(cosine_of, vectors[way], vectors[WAYS[1]]))
        print(
            f"| {model.name} | {way} | {statistics.median(rates[way]):.3g} | {ratio:.2f} x | "
            f"{cosine:.4f} |",
            flush=True,
        )


def cosine_of(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return the cosine of two arrays of the same shape, as single vectors."""
    assert one.shape == other.shape, (one.shape, other.shape)
    return float((one * other).sum() / (np.linalg.norm(one) * np.linalg.norm(other)))


def serve(way: dict[str, Any]) -> None:
    """Answer requests from stdin with the seconds that their texts take. Keep the first vectors."""
    openers = dict(
        zip(WAYS, (open_qdqbert, open_sentence_transformers, open_fastembed), strict=True)
    )
    # What libraries print is no answer.
    with contextlib.redirect_stdout(sys.stderr):
        embed, dense = openers[way["name"]](way)
    output: Path | None = Path(way["output"])
    for line in sys.stdin:
        texts = json.loads(line)["texts"]
        with contextlib.redirect_stdout(sys.stderr):
            start = time.perf_counter()
            found = embed(texts)
            seconds = time.perf_counter() - start
        if output is not None:
            np.savez(output, *dense(found))
            output = None
        print(seconds, flush=True)


def open_qdqbert(way: dict[str, Any]) -> Way:
    import qdqbert

    model = qdqbert.load(
        way["folder"], task=way["kind"], engine="native", threads=way["threads"], check=False
    )
    if way["kind"] == "sparse-embedding":
        return model.encode_document, lambda found: list(found.to_dense())
    return model.encode_document, list


def open_sentence_transformers(way: dict[str, Any]) -> Way:
    import sentence_transformers
    import torch

    torch.set_num_threads(way["threads"])
    is_sparse = way["kind"] == "sparse-embedding"
    kind = "SparseEncoder" if is_sparse else "MultiVectorEncoder"
    model = getattr(sentence_transformers, kind)(way["folder"], device="cpu")
    if is_sparse:
        return model.encode_document, lambda found: list(found.to_dense().numpy())
    return model.encode_document, lambda found: [each.numpy() for each in found]


def open_fastembed(way: dict[str, Any]) -> Way:
    import fastembed

    is_sparse = way["kind"] == "sparse-embedding"
    kind = "SparseTextEmbedding" if is_sparse else "LateInteractionTextEmbedding"
    with tempfile.TemporaryDirectory() as name:
        write_graph(Path(way["folder"]), Path(name), is_sparse=is_sparse)
        model = getattr(fastembed, kind)(
            FASTEMBED[way["kind"]], specific_model_path=name, threads=way["threads"]
        )
    words = len(model.model.tokenizer.get_vocab())

    def dense(found: Any) -> Arrays:
        rows = np.zeros((len(found), words), np.float32)
        for row, each in zip(rows, found, strict=True):
            row[each.indices] = each.values
        return list(rows)

    return lambda texts: list(model.embed(texts, batch_size=32)), dense if is_sparse else list


def write_graph(checkpoint: Path, folder: Path, *, is_sparse: bool) -> None:
    """Write what fastembed reads: a graph in float32 and the tokenizer.

    It takes the maximum over tokens itself, of the scores of a masked language model.
    """
    from transformers import AutoTokenizer

    from qdqbert.loading.float_checkpoint import open_float_checkpoint

    task: Kind | Literal["fill-mask"] = "multi-vector-embedding"
    if is_sparse:
        bare, task = folder / "checkpoint", "fill-mask"
        ignored = shutil.ignore_patterns("modules.json", "*sentence*", "*Pooling")
        shutil.copytree(checkpoint, bare, ignore=ignored)
        checkpoint = bare
    made = open_float_checkpoint(
        checkpoint, name=str(checkpoint), precision="float", engine="onnxruntime", task=task
    )
    graph = made.directory / made.targets["float"]["model"]
    # Weights may be in a file next to it, which it knows by name.
    for path in graph.parent.glob(f"{graph.name}*"):
        shutil.copy(path, folder)
    assert (folder / "model.onnx").exists()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.model_max_length = min(tokenizer.model_max_length, made.max_length)
    tokenizer.save_pretrained(folder)
    special = json.dumps(tokenizer.special_tokens_map)
    (folder / "special_tokens_map.json").write_text(special, encoding="utf-8")


if __name__ == "__main__":
    main()
