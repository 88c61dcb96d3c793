"""Run inputs through a loaded model: batches, streams and the base class of all models."""
