"""The steps of `quantize` as functions of values, which `analyze` and `evaluate` use too."""
