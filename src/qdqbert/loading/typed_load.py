"""`qdqbert.load`, with the types of the stub next to this file."""

from qdqbert.loading.load import load as load
