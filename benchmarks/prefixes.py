r"""Time rankings by a language model, with what all documents share computed once and not.

    python benchmarks/prefixes.py [--layers 4] [--rounds 15]

The model is a reranker of Qwen3-0.6B's shape with random weights: all widths are its own, with a
few of its 28 layers and the vocabulary of the packaged all-MiniLM-L6-v2. The text is that of
Qwen3-Reranker: an instruction of about 75 tokens, a query of 12, 20 documents of 50, 150 and 300
tokens, and about 10 tokens after each. All layers take the same time, and the embeddings and the
one row of the head next to none, so that the ratio is that of the whole model.

Both ways rank the same documents in one process and take turns. "without" leaves out the search
for what the texts begin with; the answers of the two ways are compared bit for bit. Times are
medians, and ratios medians of the ratios of neighbouring turns: of the time that passes, and of the
time of all cores, which does not show that a core waits for the shared tokens. The last column is
the ratio of the numbers of tokens.

Needs `pip install 'qdqbert[demo]'`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import transformers

import qdqbert
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.encoders.checkpoint.demo import demo_checkpoint
from qdqbert.runtime.prefixes import Prefixes

DOCUMENTS = 20
LENGTHS = (50, 150, 300)
QUERY = "how does a river that is near a house change its course"
TEMPLATE = """\
{%- set instruct = messages | selectattr("role", "eq", "system") | map(attribute="content") | first
 | default("Given a web search query, retrieve relevant passages that answer the query", true) -%}
system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".
user
<Instruct>: {{ instruct }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}
assistant
<think>

</think>
"""


def save_model(folder: Path, layers: int) -> None:
    """Write a reranker as sentence-transformers does, with random weights."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_checkpoint())
    tokenizer.chat_template, tokenizer.model_max_length = TEMPLATE, 8192
    tokenizer.save_pretrained(folder)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    kinds = (("Transformer", ""), ("LogitScore", "1_LogitScore"))
    modules = [{"path": path, "type": f"sentence_transformers.{kind}"} for kind, path in kinds]
    message = {"method": "forward", "method_output_name": "logits", "format": "flat"}
    ids = [tokenizer.convert_tokens_to_ids(each) for each in ("yes", "no")]
    (folder / "1_LogitScore").mkdir()
    for name, content in {
        "modules.json": modules,
        "config_sentence_transformers.json": {"model_type": "CrossEncoder"},
        "sentence_bert_config.json": {
            "transformer_task": "text-generation",
            "modality_config": {"message": message},
        },
        "1_LogitScore/config.json": {"true_token_id": ids[0], "false_token_id": ids[1]},
    }.items():
        (folder / name).write_text(json.dumps(content))


def documents(folder: Path, tokens: int) -> list[str]:
    """Return documents of a number of tokens: words that are one token each."""
    vocabulary = transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    words = sorted(each for each in vocabulary if each.isalpha() and each.islower())
    rng = np.random.default_rng(tokens)
    return [" ".join(rng.choice(words, tokens)) for _ in range(DOCUMENTS)]


class Turn(NamedTuple):
    """Seconds of a turn, those of all cores, and what it returned."""

    wall: float
    cpu: float
    answer: Any


Turns = tuple[Turn, Turn]


def timed(call: Callable[[], Any]) -> Turn:
    """Return how long a call takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = call()
    return Turn(time.perf_counter() - wall, time.process_time() - cpu, answer)


@contextmanager
def without_sharing() -> Iterator[None]:
    with mock.patch.object(Prefixes, "of", return_value=None):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(f"{cpu_name()}, {usable_cores()} cores, {', '.join(cpu_features())}")
    print(f"{options.layers} layers, {DOCUMENTS} documents, medians of {options.rounds} rounds\n")
    print(
        "| tokens of a document | shared | without, s | with, s | ratio | of CPU time | of tokens |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_model(folder, options.layers)
        with qdqbert.load(folder, check=False) as model:
            for length in LENGTHS:
                report(model, documents(folder, length), length, options.rounds)


def report(model: qdqbert.Reranker, texts: list[str], length: int, rounds: int) -> None:
    """Print a row of the table."""
    times: list[Turns] = []
    for number in range(rounds + 1):
        with without_sharing():
            first = timed(lambda: model.rank(QUERY, texts))
        second = timed(lambda: model.rank(QUERY, texts))
        assert first.answer == second.answer
        # The first round warms up.
        if number:
            times.append((first, second))
    walls = [statistics.median(each[way].wall for each in times) for way in (0, 1)]
    ratios = [
        statistics.median(getattr(one, name) / getattr(other, name) for one, other in times)
        for name in ("wall", "cpu")
    ]
    encoded = model.scoring_job().encode([(QUERY, each) for each in texts])
    ids = [each.features[0]["input_ids"] for each in encoded]
    same = [len(set(each)) == 1 for each in zip(*ids, strict=False)].index(False)
    total = sum(map(len, ids))
    most = total / (total - same * (len(ids) - 1))
    numbers = " | ".join(f"{each:.2f}" for each in (*walls, *ratios, most))
    print(f"| {length} | {same} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
