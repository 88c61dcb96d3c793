"""Python in a process of its own, for tests of what it imports, and of how it ends."""

import subprocess
import sys
from typing import Any


def call_python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Return how Python ended, and what it printed. `options` are those of `subprocess.run`."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def run_python(*arguments: object, **options: Any) -> str:
    """Return what Python printed; where it fails, the test fails with its traceback."""
    done = call_python(*arguments, **options)
    assert done.returncode == 0, (
        f"exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout.strip()
