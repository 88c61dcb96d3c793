"""Runs a graph on an installed runtime; knows nothing of how the graph was made."""
