"""`python -m qdqbert`: the `qdqbert` command, for `torchrun -m` and `accelerate launch -m`."""

from qdqbert.cli import main

if __name__ == "__main__":
    main()
