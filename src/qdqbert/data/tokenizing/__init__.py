"""Texts to token ids, with the library `tokenizers` alone."""
