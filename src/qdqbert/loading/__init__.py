"""Run a quantized model on texts: tokenize, batch, run, and turn outputs into answers."""
