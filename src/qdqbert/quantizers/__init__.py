"""The quantizer at every site of a model, and what it writes into an ONNX export."""
