"""The target `auto`: measure what this machine runs, and keep the fastest graph that passes."""
