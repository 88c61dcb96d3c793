"""Encoders that are rounded without data."""

from __future__ import annotations

from pathlib import Path

import pytest

import encoder_reference
from encoders.test_families import random_inputs, read, save_model
from qdqbert.encoders.quantize import round_encoder
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.storage import save_packed
from qdqbert.evidence.fidelity import sqnr_db

# Variants whose layers or embeddings differ in more than their names.
RUN = (
    "albert, two groups",
    "deberta",
    "deberta-v2, as v3",
    "deberta-v2, convolution",
    "electra, narrow embeddings",
    "esm",
    "esm, dropped masks",
    "esmc",
    "eurobert, shared keys",
    "gemma",
    "gemma3_text",
    "gte",
    "jina_embeddings_v3",
    "modernbert",
    "modernbert-decoder",
    "mpnet",
    "qwen3",
    "qwen3, windows both ways",
    "roberta, third token is padding",
    "roberta-prelayernorm",
    "roformer",
    "t5",
    "umt5",
)
# Values near the middle of two codes are rounded to either. In such narrow layers each counts.
LEAST_DB = 30.0


@pytest.mark.parametrize("variant", RUN)
@pytest.mark.usual("eurobert*", "esm, dropped*", "modernbert")
def test_the_native_engine_computes_what_the_rounded_model_does(
    variant: str, tmp_path: Path
) -> None:
    model = save_model(variant, "feature-extraction", tmp_path)
    rounded = round_encoder(
        read(tmp_path, "feature-extraction", poolings=("mean",), steps=("normalize",))
    )
    path = tmp_path / "packed.safetensors"
    save_packed(pack_model(rounded), path)
    inputs = random_inputs(rounded, "feature-extraction", model.config.pad_token_id)
    expected = encoder_reference.run_encoder(rounded, inputs)
    found = NativeRunner(path, threads=1).run(inputs)
    name = "sentence_embedding"
    assert sqnr_db(expected[name], found[name]) >= LEAST_DB
