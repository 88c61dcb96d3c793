"""Read checkpoints as `EncoderModel` and quantize it, with numpy alone.

A family is one file in `families/`: which tensors of a checkpoint are which part of the model. No
code of a checkpoint is run, and neither torch nor transformers is imported.
"""
