"""An engine for NVIDIA GPUs: kernels in Triton, which run packed models without padding."""
