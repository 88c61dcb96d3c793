"""Measure quantized graphs: fidelity, agreement with PyTorch, saturation and latency."""
