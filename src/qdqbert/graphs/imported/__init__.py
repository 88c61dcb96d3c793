"""Read .onnx files from outside, and bring their graphs into canonical form."""
