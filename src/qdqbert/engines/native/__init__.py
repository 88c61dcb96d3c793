"""An engine of our own: INT8 kernels generated through LLVM, and texts packed without padding."""
