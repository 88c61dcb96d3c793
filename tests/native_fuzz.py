"""Random models on random texts, with a guard page around every buffer, against numpy in float64.

A process of its own runs this, so that a crash is seen.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any, get_args

from encoder_reference import run_encoder
from native_guard import Guard, digest, guarded
from native_models import ROUNDED, Shape, packed_model, random_batch, random_model
from qdqbert.encoders.model import Head, HeadOutput, Pooling
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.storage import save_packed
from qdqbert.evidence.fidelity import sqnr_db

# Parts that need kernels of their own, which take a second to compile.
_PARTS: tuple[dict[str, Any], ...] = (
    {},
    {"narrow": 24, "dropped_id": 9, "activation": "relu"},
    {"gated": True, "rotary": True, "norms_first": True, "window": 9, "has_positions": False},
    {"normalizes_heads": True, "rotary": True, "activation": "silu"},
    {"normalizes_heads": True, "norms_each_head": True, "rotary": True, "gated": True},
    {"norms_parts": True, "norms_first": True, "gated": True, "rotary": True, "factor": 3.0},
    {"norms_parts": True, "rounds": ("local_codes", "residual_codes")},
    {"relative_keys": True, "relative_queries": True, "has_positions": False},
    {"relative_queries": True, "window": 20, "rounds": ROUNDED},
    {"convolution": 3, "adds_twice": True},
    {"experts": 5, "rotary": True},
    {"experts": 17, "activation": "relu"},
    {"gated": True, "activation": "gelu_tanh", "rounds": ("query_codes", "residual_codes")},
)
_HEADS = tuple(
    Head(poolings=(pooling,), steps=(), outputs=(HeadOutput(name=pooling),))
    for pooling in get_args(Pooling)
)
# Lengths around the sizes of panels, tiles and blocks.
_EDGES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65)
_LONG = (127, 128, 129, 255, 256, 257, 300)
# An error in one channel or row of some tens is seen. Ties of rounding count more in a single row.
_LEAST_DB, _LEAST_POOLED_DB = 30.0, 20.0


def random_shape(rng: random.Random) -> Shape:
    """Return sizes and parts of a model. Sizes are small, and near multiples of 16 or any."""

    def size(most: int) -> int:
        near = 16 * rng.randint(1, most // 16) + rng.choice((-1, 0, 0, 1))
        return rng.choice((near, rng.randint(4, most)))

    parts = rng.choice(_PARTS)
    heads, head = rng.randint(1, 5), rng.choice((2, 8, 16, 20, 32, 40, 64, 72))
    window = rng.randint(0, 40) if "window" in parts else None
    # Experts have dynamic scales, or are in float.
    scales = rng.choice(("static", "dynamic", "floats")[bool(parts.get("experts")) :])
    return Shape(
        **{
            **parts,
            "hidden": size(200),
            "heads": heads,
            "head": head,
            "inner": size(200),
            "layers": 1,
            "limit": rng.choice((*_EDGES[3:], *_LONG)),
            "words_are_int8": rng.random() < 0.7,
            "has_types": rng.random() < 0.7,
            # Rows with scales of their own are the same for query, key and value.
            "shared_codes": scales != "static" or rng.random() < 0.7,
            "smoothed": rng.random() < 0.5,
            "dynamic": scales == "dynamic",
            "floats": scales == "floats",
            "largest_code": rng.choice((64, 127)),
            "position_bias": rng.random() < 0.3,
            "causal": rng.random() < 0.2,
            "padding_id": None if "rotary" in parts else rng.choice((None, 1)),
            "window": window,
            "seed": rng.randrange(2**31),
        }
    )


def random_lengths(rng: random.Random, limit: int) -> tuple[int, ...]:
    """Return the lengths of a few texts: one, few tokens in all, or more."""
    lengths = [each for each in (*_EDGES, *_LONG) if each <= limit]
    count = rng.choice((1, 1, 2, 3, 5, 9))
    return tuple(rng.choice((rng.choice(lengths), rng.randint(1, limit))) for _ in range(count))


def check_model(seed: int, kernel: str, scratch: Path) -> None:
    """Compare a random model with numpy, and its results with several numbers of threads."""
    rng = random.Random(seed)
    shape = random_shape(rng)
    model = random_model(shape, _HEADS)
    save_packed(packed_model(shape, _HEADS), scratch)
    batches = [random_batch(random_lengths(rng, shape.limit), seed=n) for n in range(3)]
    found = []
    for threads in (1, rng.choice((2, 3))):
        runner = NativeRunner(scratch, threads=threads, kernel=kernel)
        found.append([runner.run(batch) for batch in batches])
    # Values of causal models have other scales if no head reads the last token.
    token = "last" if shape.causal else "first"
    alone = tuple(head for head in _HEADS if head.poolings == (token,))
    save_packed(packed_model(shape, alone), scratch)
    runner = NativeRunner(scratch, threads=rng.choice((1, 2, 3)), kernel=kernel)
    for batch, one in zip(batches, found[0], strict=True):
        read = runner.run(batch)[token]
        what = f"seed {seed}, kernel {kernel}: {shape}"
        assert read.tobytes() == one[token].tobytes(), (
            f"{token.title()} tokens alone differ: {what}"
        )
    for batch, one, several in zip(batches, *found, strict=True):
        lengths = batch["attention_mask"].sum(axis=1).tolist()
        what = f"seed {seed}, kernel {kernel}, lengths {lengths}: {shape}"
        assert digest(one) == digest(several), f"Threads change the result: {what}"
        expected = run_encoder(model, batch)
        # Padding is zero in both.
        db = {name: sqnr_db(expected[name], each) for name, each in one.items()}
        least = {name: _LEAST_DB if name == "none" else _LEAST_POOLED_DB for name in db}
        assert all(db[name] >= least[name] for name in db), f"{db} dB: {what}"


def main(kernel: str, first: int, count: int, scratch: Path, *, at_start: bool) -> None:
    with guarded(Guard(at_start=at_start)):
        for seed in range(first, first + count):
            # What runs when the process crashes.
            sys.stderr.write(f"seed={seed}\n")
            sys.stderr.flush()
            check_model(seed, kernel, scratch)
    sys.stdout.write(f"{count} models")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), Path(sys.argv[4]), at_start=sys.argv[5] == "start")
