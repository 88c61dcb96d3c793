"""The model of a loaded checkpoint as an `EncoderModel`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from qdqbert.common.file_names import CONFIG
from qdqbert.encoders.checkpoint.load import Checkpoint
from qdqbert.encoders.config import Config
from qdqbert.encoders.model import EncoderModel
from qdqbert.encoders.of_checkpoint import read_encoder
from qdqbert.encoders.weights import Weights

# Parts of the names of a quantizer's own parameters.
_QUANTIZER = "_quantizer."


def encoder_of(checkpoint: Checkpoint) -> EncoderModel:
    """Return the model of a checkpoint in float. It shares the parameters of PyTorch.

    Raises:
        CheckpointError: The model has a part that `EncoderModel` does not have.
        UserInputError: The family has no head for the task.
    """
    arrays = {
        name: parameter.detach().numpy()
        for name, parameter in checkpoint.model.named_parameters(remove_duplicate=False)
        if _QUANTIZER not in name
    }
    head = checkpoint.head
    model = read_encoder(
        Weights.of_arrays(arrays, Path(checkpoint.name)),
        Config(values=checkpoint.config.to_dict(), path=f"{checkpoint.name}/{CONFIG}"),
        checkpoint.task,
        poolings=() if head is None else head.row_poolings,
        steps=checkpoint.head_steps,
        token_heads=checkpoint.token_heads,
    )
    return dataclasses.replace(model, input_names=checkpoint.input_names)
