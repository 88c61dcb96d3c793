"""Write a file of real texts of mixed length: questions, sentences, paragraphs and reviews.

    python benchmarks/mixed_texts.py texts.txt --stsb stsb-en-train.csv --squad train-v1.1.json \
        --imdb train.tsv --sst2 train.tsv [--count 20000] [--seed 0]

Each of the four kinds gives a quarter of the texts: sentences of STS-B (.csv without a header),
questions and paragraphs of SQuAD (.json), reviews of IMDB and sentences of SST-2 (.tsv with a
header). Texts are shuffled, and repeated where a data set has too few.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import random
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--stsb", type=Path, required=True)
    parser.add_argument("--squad", type=Path, required=True)
    parser.add_argument("--imdb", type=Path, required=True)
    parser.add_argument("--sst2", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    kinds = [
        sentences_of_stsb(arguments.stsb),
        texts_of_squad(arguments.squad),
        first_column(arguments.imdb),
        first_column(arguments.sst2),
    ]
    texts: list[str] = []
    for number, kind in enumerate(kinds):
        kind = [text for text in kind if text]
        rng.shuffle(kind)
        share = arguments.count * (number + 1) // len(kinds) - len(texts)
        texts += itertools.islice(itertools.cycle(kind), share)
    rng.shuffle(texts)
    arguments.output.write_text("\n".join(texts) + "\n", encoding="utf-8")
    words = sorted(len(text.split()) for text in texts)
    print(
        f"{len(texts)} texts, words: median {words[len(words) // 2]}, "
        f"90 % {words[len(words) * 9 // 10]}, longest {words[-1]}"
    )


def sentences_of_stsb(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return [one_line(text) for row in csv.reader(file) for text in row[:2]]


def texts_of_squad(path: Path) -> list[str]:
    """Return every question, and every paragraph once."""
    texts = []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            texts.append(one_line(paragraph["context"]))
            texts += [one_line(each["question"]) for each in paragraph["qas"]]
    return texts


def first_column(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [one_line(line.split("\t")[0]) for line in lines]


def one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    main()
