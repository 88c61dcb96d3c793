"""Train float and quantized models with transformers' Trainer.

Training with quantizers is `prepare`, `calibrate` and the Trainer. Its output is a folder of
transformers, whose ranges `quantize` uses unchanged (decision 6).
"""
