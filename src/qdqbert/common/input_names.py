"""Names of inputs of models that are not transformers'."""

from __future__ import annotations

POOLED = "pooling_mask"
"""Input with 1 for the tokens of a text that poolings read; without it, they read all.

The tokens of a prompt may be left out.
"""
