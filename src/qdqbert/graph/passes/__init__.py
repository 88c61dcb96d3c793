"""Rewrites of graphs, one file each. Each module states before and after, and when it applies."""
