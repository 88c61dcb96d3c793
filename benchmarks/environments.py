r"""Measure the size of an installation, and the time from starting Python to the first embedding.

    python benchmarks/environments.py [--model demo] [--also sentence-transformers] [--rounds 5]

It creates two virtual environments in a temporary folder, with `pip install .` and
`pip install '.[quantize]'`, and prints for each one

- the size of the installed packages in MB, without pip itself,
- the cold start in seconds: the median wall time of `python -c` with the line of PROGRAMS, which
  loads a folder and embeds one text. A first start, which fills the caches of the disk, is not
  counted.

`--also` names packages that are installed into the second environment after its size was measured.
With sentence-transformers, its cold start on the float checkpoint is measured, too. Versions are
those of constraints.txt. pip reads its usual configuration, for example which build of torch it
takes. It downloads several gigabytes unless that is a build for CPUs.

MODEL is an embedder: a folder, a hub id, or `demo` for the packaged all-MiniLM-L6-v2. It is
quantized with the Python that runs this script.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import qdqbert
from qdqbert.common.machine import cpu_name, usable_cores
from qdqbert.encoders.checkpoint.demo import demo_checkpoint

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = {"qdqbert": ".", "qdqbert[quantize]": ".[quantize]"}
PROGRAMS = {
    "qdqbert": "import sys, qdqbert; qdqbert.load(sys.argv[1]).encode(['A cold start.'])",
    "sentence_transformers": (
        "import sys, sentence_transformers as library; "
        "library.SentenceTransformer(sys.argv[1], device='cpu').encode(['A cold start.'])"
    ),
}
# Packages that a new environment has, and what they leave.
NOT_COUNTED = ("pip", "setuptools", "wheel")
MEGABYTE = 1e6


def main() -> None:
    arguments = parse()
    print(f"{cpu_name()}, {usable_cores()} cores, Python {sys.version.split()[0]}\n")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folders = models(arguments.model, root)
        print("| environment | size, MB | program | cold start, s |")
        print("|---|---|---|---|")
        for index, (title, requirement) in enumerate(ENVIRONMENTS.items()):
            python = create(root / f"environment-{index}")
            install(python, requirement)
            size = size_of(python) / MEGABYTE
            if index == len(ENVIRONMENTS) - 1 and arguments.also:
                install(python, *arguments.also)
            for library, program in PROGRAMS.items():
                if not has(python, library, root):
                    continue
                seconds = cold_start(python, program, folders[library], root, arguments.rounds)
                print(f"| {title} | {size:.0f} | {library} | {seconds:.2f} |", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--also", nargs="*", default=(), help="more packages to install")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def models(model: str, root: Path) -> dict[str, str]:
    """Return what each program loads: the quantized folder, and the float checkpoint."""
    local = demo_checkpoint() if model == "demo" else Path(model)
    qdqbert.quantize(
        None if model == "demo" else model,
        root / "int8",
        targets=("onnxruntime",),
        benchmark=False,
    )
    # Programs run in another folder.
    checkpoint = str(local.absolute()) if local.exists() else model
    return {"qdqbert": str(root / "int8"), "sentence_transformers": checkpoint}


def create(folder: Path) -> Path:
    """Create a virtual environment and return its interpreter."""
    venv.create(folder, with_pip=True)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def install(python: Path, *requirements: str) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    command += requirements
    if subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode:
        raise SystemExit(f"pip install {' '.join(requirements)} failed")


def environment() -> dict[str, str]:
    """Return the variables of this process, without paths to other packages."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def size_of(python: Path) -> int:
    """Return the size of the installed packages in bytes."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(python, code, cwd=python.parent).strip())
    return sum(
        path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file()
        and not path.is_symlink()
        and path.relative_to(packages).parts[0].split("-")[0] not in NOT_COUNTED
    )


def has(python: Path, library: str, cwd: Path) -> bool:
    code = f"import importlib.util; print(importlib.util.find_spec({library!r}) is not None)"
    return run(python, code, cwd=cwd).strip() == "True"


def cold_start(python: Path, program: str, model: str, cwd: Path, rounds: int) -> float:
    """Return the median seconds of a program from its start to its end."""
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        run(python, program, model, cwd=cwd)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def run(python: Path, code: str, *words: str, cwd: Path) -> str:
    """Run a line of Python in an environment and return what it prints."""
    done = subprocess.run(
        [str(python), "-c", code, *words],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{code} failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
