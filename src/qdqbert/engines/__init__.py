"""Run a graph on an installed runtime, one file for each engine."""
