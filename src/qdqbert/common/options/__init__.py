"""Options of the public functions: how they are declared, and one file for each group."""
