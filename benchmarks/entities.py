"""Compare ways to find entities that are named in the call, in texts per second.

    python benchmarks/entities.py [--rounds 5] [--only v2.1]

Texts have 50 words, and a call names 20 labels. The models have random weights and the tokenizer of
all-MiniLM-L6-v2. After the encoder, GLiNER v2.1 has layers of 512 channels, and GLiNER2 its own:

- "GLiNER v2.1, DeBERTa-v3-base" and "GLiNER2, DeBERTa-v3-base": 12 layers of 768 channels,
- "GLiNER v2.1, ModernBERT-base": 22 layers of 768 channels.

The ways are

- "qdqbert, native": `load` of the checkpoint, in INT8, without data,
- "gliner": `GLiNER.inference` in float32, or `GLiNER2.batch_extract_entities` of gliner2, in
  their usual batches of 8.

Each way runs in a process, and they take turns with the same texts: one in a call, and 16. Loading
and a first turn are not timed. The threshold is one that few spans exceed, as with trained weights.

Needs `pip install 'qdqbert[benchmarks]'`. The packages ask for an older transformers, and run with
a newer one: `pip install --no-deps gliner gliner2`.
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
from pathlib import Path
from typing import Any

from engines import workers
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.data.texts import heldout_examples

WAYS = ("qdqbert, native", "gliner")
WORDS, WIDTH = 50, 512
COUNTS = (1, 16)
LABELS = (
    *("person", "organization", "location", "date", "product", "event", "work of art", "law"),
    *("language", "date of birth", "sum of money", "percentage", "quantity", "disease", "drug"),
    *("symptom", "chemical", "email address", "phone number", "postal address"),
)
DEBERTA: dict[str, Any] = {
    "model_type": "deberta-v2",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
MODELS: dict[str, dict[str, Any]] = {
    "GLiNER v2.1, DeBERTa-v3-base": DEBERTA,
    "GLiNER2, DeBERTa-v3-base": DEBERTA,
    "GLiNER v2.1, ModernBERT-base": {
        "model_type": "modernbert",
        **dict.fromkeys(("bos_token_id", "cls_token_id"), 101),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 102),
        "pad_token_id": 0,
    },
}


def main() -> None:
    arguments = parse()
    if arguments.worker:
        serve(json.loads(arguments.worker))
        return
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}")
    print(f"{arguments.threads} threads, {arguments.rounds} rounds\n")
    words = " ".join(each.text for each in heldout_examples()).split()
    texts = [
        " ".join(words[start : start + WORDS]) for start in range(0, COUNTS[-1] * WORDS, WORDS)
    ]
    with tempfile.TemporaryDirectory() as root:
        # Folders that `load` makes of checkpoints go with the others.
        os.environ["QDQBERT_CACHE"] = str(Path(root) / "cache")
        print("| model | texts in a call | way | texts/s | speed of qdqbert | entities |")
        print("|---|---|---|---|---|---|")
        for name, config in MODELS.items():
            if not arguments.only or any(word in name for word in arguments.only):
                folder = Path(root) / name
                (save_gliner2 if "GLiNER2" in name else save_gliner)(config, folder)
                compare(name, folder, texts, arguments)
                shutil.rmtree(folder)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=(), help="models whose names contain a word")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def save_gliner2(config: dict[str, Any], folder: Path) -> None:
    """Save a model of gliner2 with random weights, by the package."""
    import torch
    from gliner2 import GLiNER2
    from gliner2.configuration import ExtractorConfig
    from transformers import AutoConfig, AutoTokenizer

    from qdqbert.encoders.checkpoint.demo import demo_checkpoint

    tokenizer = AutoTokenizer.from_pretrained(demo_checkpoint())
    tokenizer.model_max_length = 512
    torch.manual_seed(0)
    model = GLiNER2(
        ExtractorConfig(model_name=str(folder), max_width=8, counting_layer="count_lstm_v2"),
        encoder_config=AutoConfig.for_model(**config, vocab_size=len(tokenizer)),
        tokenizer=tokenizer,
    )
    with torch.no_grad():
        # A text has entities, and not all probabilities are 0.5.
        model.count_pred[-1].bias[0] = -9.0
        last = model.span_rep.span_rep_layer.out_project[-1]
        last.weight *= 12
        last.bias *= 12
    model.save_pretrained(str(folder))


def save_gliner(config: dict[str, Any], folder: Path) -> None:
    """Save a model of gliner with random weights, by the package."""
    import torch
    from gliner.config import UniEncoderSpanConfig
    from gliner.model import UniEncoderSpanGLiNER
    from transformers import AutoTokenizer

    from qdqbert.encoders.checkpoint.demo import demo_checkpoint

    tokenizer = AutoTokenizer.from_pretrained(demo_checkpoint())
    tokenizer.add_tokens(["[FLERT]", "<<ENT>>", "<<SEP>>"], special_tokens=True)
    tokenizer.model_max_length = 512
    torch.manual_seed(0)
    found = UniEncoderSpanConfig(
        model_name=str(folder),
        encoder_config={**config, "vocab_size": len(tokenizer)},
        hidden_size=WIDTH,
        class_token_index=tokenizer.convert_tokens_to_ids("<<ENT>>"),
        vocab_size=len(tokenizer),
    )
    tokenizer.save_pretrained(folder)
    model = UniEncoderSpanGLiNER(found, tokenizer=tokenizer, backbone_from_pretrained=False)
    model.save_pretrained(folder)


def compare(name: str, folder: Path, texts: list[str], arguments: argparse.Namespace) -> None:
    """Print a row for each way and number of texts."""
    import qdqbert

    threshold = 0.0
    # Probabilities of random weights are near each other.
    for precision in ("int8", "float"):
        with qdqbert.load(folder, check=False, precision=precision) as model:
            threshold = max(threshold, usual_threshold(model, texts[:2]))
    times: dict[tuple[int, str], list[float]] = {
        (count, way): [] for count in COUNTS for way in WAYS
    }
    found: dict[str, int] = {}
    given = {"folder": str(folder), "threads": arguments.threads}
    with workers(WAYS, script=__file__, **given) as ask:
        for turn in range(arguments.rounds + 1):
            for count in COUNTS:
                for way in WAYS:
                    file = folder / "entities"
                    request = {
                        "texts": texts[:count],
                        "threshold": threshold,
                        "calls": COUNTS[-1] // count if count == 1 else 1,
                        "file": str(file),
                    }
                    seconds = ask[way](request)
                    if turn:
                        times[count, way].append(seconds)
                    found[way] = int(file.read_text())
    for count in COUNTS:
        own = times[count, WAYS[0]]
        for way in WAYS:
            each = times[count, way]
            ratio = statistics.median(b / a for a, b in zip(own, each, strict=True))
            print(
                f"| {name} | {count} | {way} | {count / statistics.median(each):.1f} | "
                f"{ratio:.2f} | {found[way]} |",
                flush=True,
            )


def usual_threshold(model: Any, texts: list[str]) -> float:
    """Return a threshold that few spans exceed."""
    found = model(texts, LABELS, threshold=0.0)
    scores = sorted((each["score"] for entities in found for each in entities), reverse=True)
    return float(scores[5 * len(texts)])


def serve(way: dict[str, Any]) -> None:
    """Answer requests from stdin with the seconds of a call."""
    find = open_way(way)
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        for _ in range(request["calls"]):
            entities = find(request["texts"], request["threshold"])
        seconds = (time.perf_counter() - begin) / request["calls"]
        Path(request["file"]).write_text(str(sum(map(len, entities))))
        print(json.dumps(seconds), flush=True)


def open_way(way: dict[str, Any]) -> Any:
    if way["name"].startswith("qdqbert"):
        import qdqbert

        model = qdqbert.load(Path(way["folder"]), check=False, threads=way["threads"])
        return lambda texts, threshold: model(texts, list(LABELS), threshold=threshold)
    import torch

    torch.set_num_threads(way["threads"])
    if "GLiNER2" in way["folder"]:
        from gliner2 import GLiNER2

        extractor = GLiNER2.from_pretrained(way["folder"])

        def extract(texts: list[str], threshold: float) -> list[list[Any]]:
            given = {"threshold": threshold, "include_confidence": True, "include_spans": True}
            with torch.no_grad():
                found = extractor.batch_extract_entities(texts, list(LABELS), **given)
            return [[each for own in one["entities"].values() for each in own] for one in found]

        return extract
    from gliner import GLiNER

    reference = GLiNER.from_pretrained(way["folder"])
    return lambda texts, threshold: reference.inference(texts, list(LABELS), threshold=threshold)


if __name__ == "__main__":
    main()
