"""Tasks, one module each: examples -> features -> predictions -> metrics."""
