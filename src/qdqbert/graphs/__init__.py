"""ONNX graphs: written from an `EncoderModel`, read as one, and checked."""
