"""Calibration: statistics of a model's tensors, and the ranges that follow from them."""
