"""Rows in and out, texts and tokens."""
