"""An `EncoderModel` in PyTorch, with a quantizer at each site."""
