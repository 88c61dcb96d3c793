"""Streaming, mergeable statistics, and the ranges that a calibrator takes from them."""
