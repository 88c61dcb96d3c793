"""Checkpoints of transformers: which families we know, and how they are loaded."""
