"""The kernels, one per file, each with its arithmetic in numpy."""
