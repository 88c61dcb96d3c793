"""Import existing ONNX models: bring them into canonical form, and insert a node at each site."""
