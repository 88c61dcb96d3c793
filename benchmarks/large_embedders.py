"""Compare ways to run embedders of the shapes of Qwen3 and Gemma, in texts per second.

    python benchmarks/large_embedders.py --texts texts.txt [--rounds 3] [--only Qwen3]

`benchmarks/mixed_texts.py` writes such a file. Texts are cut after 64 words. The models have random
weights in bfloat16, and the tokenizer of all-MiniLM-L6-v2:

- "Qwen3-Embedding-0.6B": 28 layers of 1024 channels, the last token of a text,
- "EmbeddingGemma-300m": 24 layers of 768 channels, which attend in both directions, and the mean.

The ways are

- "qdqbert, native": `load` of the checkpoint, in INT8, without data,
- "sentence-transformers, float32" and "sentence-transformers, bfloat16",
- "llama.cpp, Q8_0", with `--llama-cpp` and for the first model only: its server in the package
  xllamacpp, without HTTP. It gets token ids, so that it need not tokenize.

Each way runs in a process, and they take turns with the same texts. Loading and a first turn are
not timed. Memory is what a process has after a turn, with what it has read of mapped files. The
model of qdqbert is packed by another process before.

    python benchmarks/large_embedders.py --loading [--only 4B]

The first `load` of a checkpoint in shards, in a process with an empty cache: how long it takes,
with the comparison with float, and the most memory that it has. "anonymous" is its own memory;
"with files" adds pages of mapped files, which the system takes back when it needs memory. Of models
of 4B and 8B the first 2 and 4 layers are loaded, and what all take is computed: each layer adds the
same. A query is a text of 16 tokens, and the cosine that to sentence-transformers in float32.

Needs `pip install 'qdqbert[benchmarks]'`, and `xllamacpp gguf` for llama.cpp.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from decoders import save_modules
from engines import worker, workers
from qdqbert.common.machine import cpu_features, cpu_name, usable_cores
from qdqbert.evidence.fidelity import all_cosines

WAYS = ("qdqbert, native", "sentence-transformers, float32", "sentence-transformers, bfloat16")
LLAMA_CPP = "llama.cpp, Q8_0"
WORDS = 64
TEXTS = 16
QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_669,
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
}
GEMMA: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 262_144,
    "hidden_size": 768,
    "num_hidden_layers": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 1152,
    "max_position_embeddings": 2048,
    "query_pre_attn_scalar": 256,
    "sliding_window": 512,
    "use_bidirectional_attention": True,
    "pad_token_id": 0,
}
# llama.cpp's names of parts of a layer.
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
QWEN3_4B: dict[str, Any] = {
    **QWEN3,
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "intermediate_size": 9728,
}
QWEN3_8B: dict[str, Any] = {**QWEN3_4B, "hidden_size": 4096, "intermediate_size": 12288}
LARGE: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "Qwen3-Embedding-0.6B": (QWEN3, (28,)),
    "Qwen3-Embedding-4B": (QWEN3_4B, (2, 4)),
    "Qwen3-Embedding-8B": (QWEN3_8B, (2, 4)),
}
"""Shapes, and the layers that are loaded of them."""
QUERY = "how does a river that is near a house change its course in spring"
MODELS = {
    "Qwen3-Embedding-0.6B": (QWEN3, "lasttoken"),
    "EmbeddingGemma-300m": (GEMMA, "mean_tokens"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=(), help="models whose names contain a word")
    parser.add_argument("--loading", action="store_true", help="measure the first load instead")
    parser.add_argument("--llama-cpp", action="store_true", help="compare with llama.cpp, too")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        serve(json.loads(arguments.worker))
        return
    if not (arguments.texts or arguments.loading):
        parser.error("--texts or --loading is missing")
    print(f"{cpu_name()}, {usable_cores()} cores, {' '.join(cpu_features())}")
    if arguments.loading:
        measure_loading(arguments)
        return
    print(f"{arguments.threads} threads, {arguments.rounds} rounds, {TEXTS} texts\n")
    lines = arguments.texts.read_text(encoding="utf-8").splitlines()
    texts = [" ".join(line.split()[:WORDS]) for line in lines[:TEXTS]]
    with tempfile.TemporaryDirectory() as root:
        # Folders that `load` makes of checkpoints go with the others.
        os.environ["QDQBERT_CACHE"] = str(Path(root) / "cache")
        print("| model | way | texts/s | speed of qdqbert | cosine, worst | memory in MB |")
        print("|---|---|---|---|---|---|")
        for name, (config, pooling) in MODELS.items():
            if not arguments.only or any(word in name for word in arguments.only):
                save_model(config, pooling, folder := Path(root) / name)
                compare(name, folder, texts, arguments)
                shutil.rmtree(folder)


def save_model(config: dict[str, Any], pooling: str, folder: Path) -> None:
    """Save a model with random weights."""
    import torch
    from transformers import AutoConfig, AutoModel
    from transformers.initialization import no_init_weights

    from qdqbert.encoders.checkpoint.demo import demo_checkpoint

    found = AutoConfig.for_model(**config)
    with no_init_weights():
        model = AutoModel.from_config(found, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * 0.02
            # Norms of Gemma have weights around 0, and the others around 1.
            shift = float("norm" in name and config["model_type"] != "gemma3_text")
            parameter.copy_(drawn + shift)
    model.save_pretrained(folder, max_shard_size="1GB")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo_checkpoint() / file, folder / file)
    save_modules(folder, pooling)


def measure_loading(arguments: argparse.Namespace) -> None:
    """Print a row for each model and number of layers."""
    print("| model | layers | checkpoint, GB | packed, GB | load, s | anonymous, GB ", end="")
    print("| with files, GB | query, ms | cosine |")
    print(f"{'|---' * 9}|")
    for name, (config, cuts) in LARGE.items():
        if arguments.only and not any(word in name for word in arguments.only):
            continue
        rows = []
        for layers in cuts:
            with tempfile.TemporaryDirectory() as root:
                folder = Path(root) / "model"
                save_model({**config, "num_hidden_layers": layers}, "lasttoken", folder)
                rows.append(first_load(folder, arguments.threads))
            numbers = " | ".join(f"{each:.2f}" for each in rows[-1][:-1])
            print(f"| {name} | {layers} | {numbers} | {rows[-1][-1]:.4f} |", flush=True)
        if len(cuts) > 1:
            whole = config["num_hidden_layers"]
            share = (whole - cuts[0]) / (cuts[1] - cuts[0])
            # Sizes and times add up. Of memory, the most counts.
            found = [a + (b - a) * share for a, b in zip(*rows, strict=True)]
            most = max(each[3] for each in rows)
            numbers = " | ".join(f"{each:.1f}" for each in (*found[:3], most))
            print(f"| {name} | {whole}, computed | {numbers} | | {found[5]:.1f} | |", flush=True)


def first_load(folder: Path, threads: int) -> list[float]:
    """Return sizes of checkpoint and packed model, seconds, memory, milliseconds and a cosine."""
    os.environ["QDQBERT_CACHE"] = str(folder.parent / "cache")
    file = folder.parent / "found.npy"
    found = []
    for name in ("loading", WAYS[1]):
        way = {"name": name, "folder": str(folder), "threads": threads}
        with worker(way, script=__file__) as ask:
            times = [ask({"texts": [QUERY], "file": str(file)}) for _ in range(12)]
        found.append((np.load(file), 1000 * statistics.median(times[1:])))
    [packed] = Path(os.environ["QDQBERT_CACHE"]).glob("models/*/model.safetensors")
    stored = [path.stat().st_size for path in folder.glob("*.safetensors")]
    memory = json.loads((folder / "loading.json").read_text())
    cosine = float(all_cosines([found[1][0]], [found[0][0]])[0])
    sizes = (sum(stored) / 1e9, packed.stat().st_size / 1e9)
    return [*sizes, *memory, found[0][1], cosine]


class Memory:
    """The most memory that this process has while this runs, in GB."""

    def __enter__(self) -> Memory:
        self.anonymous = self.total = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            lines = Path("/proc/self/status").read_text().splitlines()
            sizes = {
                line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")
            }
            anonymous, total = int(sizes["RssAnon"]), sum(map(int, sizes.values()))
            self.anonymous = max(self.anonymous, anonymous * 1024 / 1e9)
            self.total = max(self.total, total * 1024 / 1e9)


def open_watched(folder: Path, threads: int) -> Any:
    """Return the `encode` of a model that is loaded for the first time, and write what it took."""
    import qdqbert

    start = time.perf_counter()
    with Memory() as memory:
        model = qdqbert.load(folder, threads=threads)
    seconds = time.perf_counter() - start
    found = [seconds, memory.anonymous, memory.total]
    (folder / "loading.json").write_text(json.dumps(found))
    return model.encode


def compare(name: str, folder: Path, texts: list[str], arguments: argparse.Namespace) -> None:
    """Print a row for each way."""
    import qdqbert

    qdqbert.load(folder, check=False).close()
    ways: tuple[str, ...] = WAYS
    if arguments.llama_cpp and "Qwen3" in name:
        ways = (*WAYS, LLAMA_CPP)
        write_gguf(folder, folder / "model.gguf")
    times: dict[str, list[float]] = {way: [] for way in ways}
    found, memory = {}, {}
    given = {"folder": str(folder), "threads": arguments.threads}
    with workers(ways, script=__file__, **given) as ask:
        for turn in range(arguments.rounds + 1):
            for way in ways:
                file = folder / f"{ways.index(way)}.npy"
                seconds = ask[way]({"texts": texts, "file": str(file)})
                if turn:
                    times[way].append(seconds)
                found[way] = np.load(file)
                memory[way] = int((folder / f"{file.name}.memory").read_text())
    own, float32 = times[WAYS[0]], found[WAYS[1]]
    for way in ways:
        ratio = statistics.median(b / a for a, b in zip(own, times[way], strict=True))
        cosines = all_cosines([float32], [found[way]])
        print(
            f"| {name} | {way} | {len(texts) / statistics.median(times[way]):.1f} | {ratio:.2f} "
            f"| {cosines.min():.4f} | {memory[way]:,} |",
            flush=True,
        )


def write_gguf(folder: Path, file: Path) -> None:
    """Write a model of Qwen3's type for llama.cpp, with its weights in Q8_0 and without words."""
    import gguf
    import safetensors

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "qwen3")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("no_vocab")
    others = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
    kind = gguf.GGMLQuantizationType.Q8_0
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                values, own = stored.get_tensor(name).float().numpy(), others.get(name)
                if own is None:
                    _, layer, part = name.split(".", 2)
                    own = f"blk.{layer}.{GGUF_NAMES[part.removesuffix('.weight')]}.weight"
                if values.ndim == 2:
                    writer.add_tensor(own, gguf.quants.quantize(values, kind), raw_dtype=kind)
                else:
                    writer.add_tensor(own, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def open_llama_cpp(folder: Path, threads: int) -> Any:
    """Return the `encode` of llama.cpp's server, without HTTP."""
    import tokenizers
    import xllamacpp

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(folder / "model.gguf")
    parameters.embedding = True
    parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = 4096
    parameters.n_parallel = TEXTS
    parameters.kv_unified = True
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.verbosity = -1
    server = xllamacpp.Server(parameters)

    def encode(texts: list[str]) -> list[list[float]]:
        ids = [each.ids for each in tokenizer.encode_batch(texts)]
        found = server.handle_embeddings({"input": ids, "model": "model"})
        return [each["embedding"] for each in found["data"]]

    return encode


def serve(way: dict[str, Any]) -> None:
    """Answer requests from stdin with the seconds of a turn."""
    encode = open_way(way)
    for line in sys.stdin:
        request = json.loads(line)
        begin = time.perf_counter()
        vectors = encode(request["texts"])
        seconds = time.perf_counter() - begin
        np.save(request["file"], np.asarray(vectors, np.float32))
        used = psutil.Process().memory_full_info().pss // 2**20
        Path(f"{request['file']}.memory").write_text(str(used))
        print(json.dumps(seconds), flush=True)


def open_way(way: dict[str, Any]) -> Any:
    if way["name"] == "loading":
        return open_watched(Path(way["folder"]), way["threads"])
    if way["name"].startswith("qdqbert"):
        import qdqbert

        return qdqbert.load(Path(way["folder"]), check=False, threads=way["threads"]).encode
    if way["name"] == LLAMA_CPP:
        return open_llama_cpp(Path(way["folder"]), way["threads"])
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(way["threads"])
    dtype = way["name"].rpartition(" ")[2]
    given = {"dtype": getattr(torch, dtype)}
    return SentenceTransformer(way["folder"], device="cpu", model_kwargs=given).encode


if __name__ == "__main__":
    main()
