"""Quantizers and the modules that call them, and how they are inserted into a model."""
