"""Quantizer modules and where they are put into a PyTorch model."""
