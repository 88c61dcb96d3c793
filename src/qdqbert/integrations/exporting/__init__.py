"""Formats of other runtimes and servers, written from a folder of `quantize`: one file each."""
