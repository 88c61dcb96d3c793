"""Texts that go on after a prefix get the bits of whole texts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import transformers

from decoder_models import save_decoder
from qdqbert.encoders.quantize import round_encoder
from qdqbert.engines.native.instruction_sets import usable_sets
from qdqbert.engines.native.packed import pack_model
from qdqbert.engines.native.runner import NativeRunner
from qdqbert.engines.native.value_bounds import value_bounds
from qdqbert.loading.float_checkpoint.folder import read_model
from qdqbert.loading.float_checkpoint.source import read_checkpoint

PREFIXES = (1, 16, 17, 95, 300)
# Rows of attention are computed in blocks of 24 or 32, and weighted values in blocks of 256.
LENGTHS = (1, 3, 40, 7, 290)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    auto = transformers.AutoModelForSequenceClassification
    changes = {"num_labels": 1, "max_position_embeddings": 700, "attention_bias": True}
    save_decoder(folder, auto=auto, ends=False, **changes)
    checkpoint = read_checkpoint(folder)
    return read_model(checkpoint, checkpoint.read_weights())


def inputs(texts):
    ids = np.zeros((len(texts), max(map(len, texts))), np.int64)
    mask = np.zeros_like(ids)
    for row, own, text in zip(ids, mask, texts, strict=True):
        row[: len(text)], own[: len(text)] = text, 1
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(
    "kernel",
    [
        pytest.param(each.name, marks=[pytest.mark.slow] * (number > 0))
        for number, each in enumerate(usable_sets())
    ],
)
@pytest.mark.parametrize("precision", ["int8", "float"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_shared_prefix_changes_no_bit(decoder, precision, kernel, threads) -> None:
    model = decoder if precision == "float" else round_encoder(decoder)
    runner = NativeRunner(pack_model(model, precision=precision), threads=threads, kernel=kernel)
    assert runner.shares_prefixes()
    rng = np.random.default_rng(0)
    for tokens in PREFIXES:
        prefix = rng.integers(0, 300, tokens)
        rest = [rng.integers(0, 300, length) for length in LENGTHS]
        expected = runner.run(inputs([np.append(prefix, each) for each in rest]))["logits"]
        known = runner.read_prefix(prefix)
        for texts in (rest, rest[1:2], rest[:2]):
            found = runner.run_after(known, inputs(texts))["logits"]
            first = 1 if len(texts) == 1 else 0
            np.testing.assert_array_equal(found, expected[first : first + len(texts)])


def test_values_are_below_their_bounds(decoder) -> None:
    model = round_encoder(decoder)
    rng = np.random.default_rng(0)
    before = None
    for layer in model.layers:
        bound, before = value_bounds(model, layer, before), layer
        assert bound is not None
        norm, value = layer.attention_norm, layer.attention.value
        assert norm is not None
        states = rng.standard_cauchy((2000, len(norm.weight))) ** 3
        rms = np.sqrt((states**2).mean(axis=1, keepdims=True) + norm.epsilon)
        given = states / rms * norm.weight
        spread = value.codes.hadamard.spread(given * value.codes.multiplier)
        step = np.abs(spread).max(axis=1, keepdims=True) / 127
        codes = np.rint(spread / step)
        found = codes * step @ (value.weight * value.weight_scale[:, None]).T + value.bias
        assert (np.abs(found) <= bound).all()
        # They are not larger than they need to be: one direction reaches most of a bound.
        assert np.abs(found).max(axis=0).max() > bound.max() / 10


def test_what_depends_on_later_tokens_is_not_shared(decoder) -> None:
    def changed(**changes):
        layers = tuple(
            dataclasses.replace(each, attention=dataclasses.replace(each.attention, **changes))
            for each in decoder.layers
        )
        return dataclasses.replace(decoder, layers=layers)

    def shares(model):
        packed = pack_model(round_encoder(model))
        return NativeRunner(packed, threads=1).shares_prefixes()

    assert shares(decoder)
    mean = tuple(dataclasses.replace(each, poolings=("mean",)) for each in decoder.heads)
    others = (
        changed(causal=False),
        changed(window=8),
        dataclasses.replace(decoder, heads=mean),
    )
    for model in others:
        assert not shares(model)
        # Their values are rounded by scales of a text, which are finer.
        assert not pack_model(round_encoder(model)).settings["bounds_values"]
