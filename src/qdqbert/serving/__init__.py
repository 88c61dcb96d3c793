"""An HTTP server for models on one machine: requests run together in batches."""
