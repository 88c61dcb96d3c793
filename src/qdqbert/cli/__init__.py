"""The command line: one module for each command."""

from qdqbert.cli.app import app, main

__all__ = ["app", "main"]
