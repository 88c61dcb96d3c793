"""Quantizers in modules of transformers: QAT and the QDQBERT classes."""
