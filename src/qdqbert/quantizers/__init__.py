"""The quantizer that stands at every site of a model."""
