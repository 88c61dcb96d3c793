"""The verbs: quantize, evaluate, benchmark. Each is one call over the rooms below it."""
