"""Graphs that come ready-made: read with care, put in normal form, and given sites by structure."""
