"""Checkpoints of transformers: the supported families, and loading."""
