"""One package for each command: what the public functions and the command line call."""
