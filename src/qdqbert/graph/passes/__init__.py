"""Rewrites of a quantized graph for one target, one a file."""
