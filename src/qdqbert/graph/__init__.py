"""ONNX graphs: export from PyTorch, Q/DQ insertion, rewrites and checks."""
