"""Train float and quantized models with transformers' Trainer.

`train --qat` is `prepare`, `calibrate` and the Trainer. Its output is a folder of transformers,
whose ranges `quantize` uses unchanged (decision 6).
"""
