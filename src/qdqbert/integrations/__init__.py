"""Quantized models in other frameworks, whose libraries are imported only when they are used."""
