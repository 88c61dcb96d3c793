"""Encoders that are rounded without data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import encoder_reference
from encoders.test_families import random_inputs, read, save_model
from qdqbert.encoders.model import Linear
from qdqbert.encoders.rounding import round_encoder, round_linear
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
    "eurobert, shared keys",
    "gte",
    "jina_embeddings_v3",
    "modernbert",
    "mpnet",
    "roberta, third token is padding",
    "roberta-prelayernorm",
    "roformer",
)
# Values near the middle of two codes are rounded to either. In such narrow layers each counts.
LEAST_DB = 32.0
WEIGHTS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 9)),
    elements=st.floats(-3, 3, width=32, allow_subnormal=False),
)


def linear_of(weight: Any) -> Linear:
    bias = np.zeros(len(weight), np.float32)
    return Linear(weight=weight, weight_scale=None, bias=bias, codes=None)


@given(WEIGHTS)
def test_codes_are_the_nearest_ones(weight: Any) -> None:
    rounded = round_linear(linear_of(weight))
    assert rounded.weight_scale is not None
    error = rounded.weight * rounded.weight_scale[:, None] - weight
    assert (np.abs(error) <= rounded.weight_scale[:, None] * 0.5001).all()
    assert (np.abs(rounded.weight) <= 127).all()


@given(WEIGHTS)
def test_limited_pairs_never_exceed_the_limit(weight: Any) -> None:
    rounded = round_linear(linear_of(weight), limits_pairs=True)
    assert rounded.weight_scale is not None
    codes = np.pad(rounded.weight, [(0, 0), (0, weight.shape[1] % 2)]).astype(int)
    assert np.abs(codes[:, ::2] + codes[:, 1::2]).max() <= 128
    error = rounded.weight * rounded.weight_scale[:, None] - weight
    assert (np.abs(error) <= rounded.weight_scale[:, None] * 0.5001).all()


@pytest.mark.parametrize("variant", RUN)
def test_the_native_engine_computes_what_the_rounded_model_does(
    variant: str, tmp_path: Path
) -> None:
    model = save_model(variant, "feature-extraction", tmp_path)
    rounded = round_encoder(read(tmp_path, "feature-extraction", pooling="mean", normalize=True))
    path = tmp_path / "packed.safetensors"
    save_packed(pack_model(rounded), path)
    inputs = random_inputs(rounded, "feature-extraction", model.config.pad_token_id)
    expected = encoder_reference.run_encoder(rounded, inputs)
    found = NativeRunner(path, threads=1).run(inputs)
    name = "sentence_embedding"
    assert sqnr_db(expected[name], found[name]) >= LEAST_DB
