"""Training of float and quantized models, on transformers' Trainer."""
