"""Train float and quantized models with transformers' Trainer."""
