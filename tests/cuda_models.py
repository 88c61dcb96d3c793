"""Small models for the kernels of GPUs, which have all parts together."""

from __future__ import annotations

import dataclasses
from typing import Any

from native_models import DECODER, MODERN, SANDWICH, Shape

SMALL: dict[str, Any] = {"hidden": 40, "heads": 5, "head": 8, "inner": 72}
SHAPES = {
    "bert": Shape(**SMALL, position_bias=True, narrow=24, dropped_id=9, adds_twice=True),
    "modern": dataclasses.replace(MODERN, smoothed=False, normalizes_heads=True),
    "decoder": dataclasses.replace(DECODER, heads=3),
    "sandwich": dataclasses.replace(SANDWICH, heads=3, words_are_int8=False),
    "roberta": Shape(padding_id=1, causal=True, activation="gelu_tanh", words_are_int8=False),
    "wide": Shape(hidden=384, heads=6, head=64, inner=768, layers=1, has_positions=False),
    "gated": Shape(gated=True, activation="silu", has_types=False),
    "relu": Shape(hidden=48, heads=3, head=16, inner=96, activation="relu", window=3),
    "odd": Shape(hidden=36, heads=3, head=12, inner=60, activation="tanh"),
}
"""Shapes by name; for GPUs they are dynamic, or in float."""
