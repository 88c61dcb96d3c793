"""Ranges in checkpoints of transformers models whose modules `quant_modules` has replaced.

transformers 5 builds a model on the meta device, and loads the tensors that it has. Others are
dropped: ranges, which a quantizer has once it is calibrated. Tensors that the checkpoint lacks get
no values: ranges of descriptors. Models with quantizers of this package say in config.json which
ranges they have; these models say nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from safetensors import safe_open

from qdqbert.compat.nn import TensorQuantizer
from qdqbert.encoders.stored import BUFFERS


def restoring_ranges(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return transformers' function that fills a model from files, changed to fill ranges too.

    Args:
        load: `PreTrainedModel._load_pretrained_model`. Its first arguments are the model, and
            either a state dict or the files of the checkpoint. Its first or only result has the
            names of the tensors that these lack.
    """

    @functools.wraps(load)
    def load_with_ranges(
        model: Any, state_dict: Any, checkpoint_files: Any, *args: Any, **kwargs: Any
    ) -> Any:
        quantizers = {
            name: module
            for name, module in model.named_modules()
            # Others belong to models that say which ranges they have.
            if isinstance(module, TensorQuantizer) and module.site is None
        }
        base = f"{model.base_model_prefix}."
        stored = {} if not quantizers else dict(_stored_ranges(state_dict, checkpoint_files or ()))
        for name, quantizer in quantizers.items():
            quantizer.restart()
            for buffer in BUFFERS:
                key = f"{name}.{buffer}"
                found = [stored.get(each) for each in (key, base + key, key.removeprefix(base))]
                shape = next((each for each in found if each is not None), None)
                if shape is not None and getattr(quantizer, buffer, None) is None:
                    quantizer.expect(buffer, shape)
        result = load(model, state_dict, checkpoint_files, *args, **kwargs)
        info = result[0] if isinstance(result, tuple) else result
        info.missing_keys -= {
            f"{name}.{key}" for name, each in quantizers.items() for key in each.state_dict()
        }
        return result

    return load_with_ranges


def _stored_ranges(
    state_dict: Mapping[str, Any] | None, files: Sequence[str]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of each range of a checkpoint."""
    if state_dict is not None:
        for name, tensor in state_dict.items():
            if name.endswith(BUFFERS):
                yield name, tuple(tensor.shape)
        return
    for file in files:
        if not str(file).endswith(".safetensors"):
            continue
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if name.endswith(BUFFERS):
                    yield name, tuple(tensors.get_slice(name).get_shape())
