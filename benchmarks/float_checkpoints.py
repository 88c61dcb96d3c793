"""Float checkpoints that `load` runs at once: the time to the first result, and how close they are.

    python benchmarks/float_checkpoints.py start CHECKPOINT [CHECKPOINT ...]
    python benchmarks/float_checkpoints.py closeness CHECKPOINT --texts FILE

`start` measures whole processes, which read a checkpoint of an embedder and embed one text:
without a cache, with and without the comparison with float, from the cache while another process
has the model loaded, and with sentence-transformers. `closeness` compares the outputs for each line
of a file, or each pair of a line with a tab in it, with those of transformers in float32.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

_OURS = """
import qdqbert
with qdqbert.load({path!r}, check={check}) as model:
    assert model.encode(["How do I reset my password?"]).ndim == 2
"""
_FLOAT = _OURS.replace("check={check}", 'precision="float"')
_SENTENCE_TRANSFORMERS = """
import sentence_transformers
model = sentence_transformers.SentenceTransformer({path!r}, device="cpu")
assert model.encode(["How do I reset my password?"]).ndim == 2
"""
# The process says how much memory it took at most, and how much is its own alone at the end.
_MEMORY = """
import json, resource
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
own = 0
try:
    rows = open("/proc/self/smaps_rollup").read().splitlines()
    own = sum(int(row.split()[1]) for row in rows if row.startswith("Private_")) / 1024
except OSError:
    pass
print(json.dumps([peak, own]))
"""
# Another process that has the model loaded until its input ends.
_WAIT = """
    import sys
    print("loaded", flush=True)
    sys.stdin.read()
"""


def measure(code: str, cache: Path, repeats: int, *, is_fresh: bool) -> tuple[float, float, float]:
    """Return the median of seconds, and the medians of peak and private memory in MB."""
    found = []
    for _ in range(repeats):
        if is_fresh:
            shutil.rmtree(cache / "models", ignore_errors=True)
        environment = {**os.environ, "QDQBERT_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code + _MEMORY],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - begin
        found.append((seconds, *json.loads(done.stdout.splitlines()[-1])))
    seconds, peak, own = (statistics.median(each) for each in zip(*found, strict=True))
    return seconds, peak, own


@contextlib.contextmanager
def other_process(code: str, cache: Path) -> Iterator[None]:
    """Run a process that keeps a model loaded."""
    environment = {**os.environ, "QDQBERT_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code + _WAIT], env=environment, **pipes) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "loaded\n"
        yield
        other.stdin.close()


def start(checkpoints: list[str], repeats: int) -> None:
    print("| checkpoint | how | seconds | peak memory, MB | private memory, MB |")
    print("|---|---|---|---|---|")
    for path in checkpoints:
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            fast, checked = (_OURS.format(path=path, check=each) for each in (False, True))
            # Kernels are compiled once for a CPU.
            measure(fast, cache, 1, is_fresh=False)
            rows = {
                "without a cache": measure(fast, cache, repeats, is_fresh=True),
                "without a cache, compared with float": measure(
                    checked, cache, repeats, is_fresh=True
                ),
            }
            with other_process(checked, cache):
                rows["from the cache, as the second process"] = measure(
                    checked, cache, repeats, is_fresh=False
                )
            rows |= {
                "float, from the cache": measure(
                    _FLOAT.format(path=path), cache, repeats, is_fresh=False
                ),
                "sentence-transformers": measure(
                    _SENTENCE_TRANSFORMERS.format(path=path), cache, repeats, is_fresh=False
                ),
            }
        for name, (seconds, peak, own) in rows.items():
            print(f"| {Path(path).name} | {name} | {seconds:.2f} | {peak:.0f} | {own:.0f} |")


def closeness(checkpoint: str, texts: str, limit: int | None) -> None:
    """Print the SQNR of an output over all texts, and the share of different decisions."""
    # Only this comparison needs them.
    import torch
    import transformers

    import qdqbert

    lines = [line for line in Path(texts).read_text(encoding="utf-8").splitlines() if line][:limit]
    with qdqbert.load(checkpoint, check=False) as model:
        config = transformers.AutoConfig.from_pretrained(checkpoint)
        # The config of an embedder may name a head that it does not have.
        is_embedder = isinstance(model, qdqbert.Embedder)
        kind = "AutoModel" if is_embedder else config.architectures[0]
        auto = getattr(transformers, kind, transformers.AutoModel)
        float_model = auto.from_pretrained(checkpoint, dtype=torch.float32).eval()
        loaded: Any = model
        tokenizer = loaded._loaded.tokenizer
        signal = noise = 0.0
        changed = decisions = 0
        cosines = []
        for line in lines:
            item: Any = tuple(line.split("\t")) if "\t" in line else line
            encoding = tokenizer.encode(item)
            inputs = {
                "input_ids": np.array([encoding.ids]),
                "attention_mask": np.ones((1, len(encoding.ids)), np.int64),
                "token_type_ids": np.array([encoding.type_ids]),
            }
            inputs = {name: inputs[name] for name in loaded._loaded.artifact.input_names}
            with torch.no_grad():
                wanted = float_model(**{k: torch.from_numpy(v) for k, v in inputs.items()})
            outputs = loaded.forward(inputs)
            if "sentence_embedding" in outputs:
                states = wanted.last_hidden_state[0].double()
                expected = states.mean(0) if states.ndim == 2 else states
                expected = (expected / expected.norm()).numpy()[None]
                found = outputs["sentence_embedding"].astype(np.float64)
                cosines.append(float((expected * found).sum()))
                pairs = [(expected, found)]
            else:
                names = [name for name in outputs if name in wanted]
                pairs = [(wanted[n].double().numpy(), outputs[n].astype(np.float64)) for n in names]
                for one, other in pairs:
                    same = one.argmax(-1) == other.argmax(-1)
                    changed, decisions = changed + int((~same).sum()), decisions + same.size
            signal += sum(float((one**2).sum()) for one, _ in pairs)
            noise += sum(float(((one - other) ** 2).sum()) for one, other in pairs)
    print(f"{Path(checkpoint).name}: {10 * np.log10(signal / noise):.1f} dB of {len(lines)} texts")
    if cosines:
        print(f"worst cosine {min(cosines):.4f}")
    if decisions:
        print(f"{100 * changed / decisions:.2f} % of {decisions} decisions changed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    begin = commands.add_parser("start")
    begin.add_argument("checkpoints", nargs="+")
    begin.add_argument("--repeats", type=int, default=5)
    close = commands.add_parser("closeness")
    close.add_argument("checkpoint")
    close.add_argument("--texts", required=True)
    close.add_argument("--limit", type=int)
    given = parser.parse_args()
    if given.command == "start":
        start(given.checkpoints, given.repeats)
    else:
        closeness(given.checkpoint, given.texts, given.limit)


if __name__ == "__main__":
    main()
