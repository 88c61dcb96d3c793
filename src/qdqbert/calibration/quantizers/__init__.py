"""The quantizer at every site of a model, and its nodes in an ONNX export."""
