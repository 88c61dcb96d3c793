"""What proves a graph: fidelity to the float model, latency, size; and the record of it."""
