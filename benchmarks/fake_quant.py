"""Measure how much quantizers slow down a training step.

    python benchmarks/fake_quant.py                  # eager and compiled, on a GPU if there is one
    python benchmarks/fake_quant.py --modes eager --device cpu

A step is forward, loss, backward and AdamW on an encoder of two layers with the shape of BERT-base.
The models take turns, so that a slow period of the machine affects all of them. Ratios are those of
medians. The models are:

- `float`: transformers' default, with fused attention
- `float, eager attention`: the attention that quantizers between the matmuls need
- `linear layers`: quantizers only on the inputs and weights of linear layers
- `all quantizers`: all 20 quantizers of each layer
- `all, torch's kernels`: the same with torch's own fake-quantize operators
  (`TensorQuantizer.use_fb_fake_quant`), in eager mode only
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

from qdqbert import QDQBertModel, calibrate
from qdqbert.compat.nn import TensorQuantizer
from qdqbert.training.models import QDQBertConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--modes", nargs="+", default=["eager", "compile"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for mode in options.modes for row in measure(options, mode)]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"Training step, {options.batch} x {options.tokens}, {options.device}")
    for column in (
        "mode",
        "model",
        "median ms",
        "relative to float",
        "relative to float, eager attention",
    ):
        table.add_column(column)
    for row in rows:
        table.add_row(
            row["mode"],
            row["model"],
            f"{row['median_ms']:.1f}",
            f"{row['to_float']:.2f}",
            f"{row['to_float_eager_attention']:.2f}",
        )
    Console().print(table)


def measure(options: argparse.Namespace, mode: str) -> list[dict[str, Any]]:
    """Time the models in one mode, and return a row for each."""
    models = build(options)
    steps = {name: make_step(model, options, mode) for name, model in models.items()}
    if mode == "eager":
        steps["all, torch's kernels"] = with_torch_kernels(steps["all quantizers"])
    for step in steps.values():
        # The first steps compile the model and create the state of AdamW.
        for _ in range(3):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            times[name].append((time.perf_counter() - start) * 1e3)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return [
        {
            "mode": mode,
            "model": name,
            "median_ms": median,
            "to_float": median / medians["float"],
            "to_float_eager_attention": median / medians["float, eager attention"],
        }
        for name, median in medians.items()
    ]


def build(options: argparse.Namespace) -> dict[str, torch.nn.Module]:
    """Return float models and calibrated quantized models with equal weights, by name."""
    shape = {
        "vocab_size": 1000,
        "hidden_size": options.hidden,
        "num_attention_heads": options.hidden // 64,
        "intermediate_size": 4 * options.hidden,
        "num_hidden_layers": options.layers,
    }
    torch.manual_seed(0)
    quantized = QDQBertModel(QDQBertConfig(**shape), add_pooling_layer=False)
    state = quantized.state_dict()
    calibrate(quantized, [{"input_ids": tokens(options)}], calibrator="max")
    linear_only = copy.deepcopy(quantized)
    for name, module in linear_only.named_modules():
        if isinstance(module, TensorQuantizer) and ("matmul_" in name or "add_" in name):
            module.disable()
    models: dict[str, torch.nn.Module] = {}
    for name, attention in (("float", "sdpa"), ("float, eager attention", "eager")):
        config = transformers.BertConfig(**shape, attn_implementation=attention)
        model = transformers.BertModel(config, add_pooling_layer=False)
        model.load_state_dict(state)
        models[name] = model
    models["linear layers"] = linear_only
    models["all quantizers"] = quantized
    return {name: model.to(options.device).train() for name, model in models.items()}


def make_step(model: torch.nn.Module, options: argparse.Namespace, mode: str) -> Callable[[], None]:
    """Return a training step that waits until the device has finished."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    ids = tokens(options).to(options.device)
    forward = torch.compile(model) if mode == "compile" else model

    def step() -> None:
        loss = forward(input_ids=ids).last_hidden_state.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if options.device == "cuda":
            torch.cuda.synchronize()

    return step


def with_torch_kernels(step: Callable[[], None]) -> Callable[[], None]:
    """Return the step with torch's own fake-quantize operators."""

    def switched() -> None:
        TensorQuantizer.use_fb_fake_quant = True
        try:
            step()
        finally:
            TensorQuantizer.use_fb_fake_quant = False

    return switched


def tokens(options: argparse.Namespace) -> torch.Tensor:
    """Return random token ids, `(batch, tokens)`."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1000, (options.batch, options.tokens), generator=generator)


if __name__ == "__main__":
    main()
