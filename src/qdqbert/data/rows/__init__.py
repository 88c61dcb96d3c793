"""The examples of a task, read from tables and from its own formats."""
