from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

from qdqbert.compat.helper import (
    freeze_parameters,
    group_parameters,
    match_parameters,
    quant_weight_inplace,
)
from qdqbert.compat.nn import QuantConv2d, QuantLinear, QuantLSTMCell


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "conv": nn.Conv1d(2, 3, 1),
            "norm": nn.BatchNorm1d(3),
            "head": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)),
        }
    )


def names_of(model: nn.Module, parameters) -> list[str]:
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return [known[id(parameter)] for parameter in parameters]


# Matching


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["conv"], ["conv.weight", "conv.bias"]),
        ([r"head\.\d\.weight"], ["head.0.weight", "head.1.weight"]),
        (["bias$", "conv"], ["conv.weight", "conv.bias", "norm.bias", "head.0.bias"]),
        (["conv", "conv.*weight"], ["conv.weight", "conv.bias"]),
        (["nothing"], []),
        ([], []),
    ],
    ids=["name", "expression", "several", "overlapping", "nothing", "none"],
)
def test_parameters_are_found_once_by_their_names(model, patterns, names) -> None:
    assert names_of(model, match_parameters(model, patterns)) == names


# Groups


def test_groups_are_of_patterns_and_have_their_settings(model) -> None:
    groups = group_parameters(
        model,
        [["conv", "head"], ["norm"]],
        lrs=[0.1, None],
        momentums=[0.9, 0.8],
        weight_decays=[None, 0.0],
    )
    assert [names_of(model, group["params"]) for group in groups] == [
        ["conv.weight", "conv.bias", "head.0.weight", "head.0.bias", "head.1.weight"],
        ["norm.weight", "norm.bias"],
    ]
    assert [
        {key: value for key, value in group.items() if key != "params"} for group in groups
    ] == [{"lr": 0.1, "momentum": 0.9}, {"momentum": 0.8, "weight_decay": 0.0}]


def test_groups_drive_an_optimizer_more_than_once(model) -> None:
    groups = group_parameters(model, [["conv"], ["head"]], lrs=[0.5, 0.0])
    # The parameters of a group can be read again.
    for _ in range(2):
        assert names_of(model, groups[0]["params"]) == ["conv.weight", "conv.bias"]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        moved = 0.5 if name.startswith("conv") else 0.0
        torch.testing.assert_close(parameter, before[name] - moved)


@pytest.mark.parametrize("patterns", [["conv"], "conv", None, [("conv",)]], ids=str)
def test_patterns_have_to_be_lists_in_a_list(patterns) -> None:
    with pytest.raises(TypeError, match=r"^patterns_list must be list of list of patterns$"):
        group_parameters(None, patterns)


@pytest.mark.parametrize("name", ["lrs", "momentums", "weight_decays"])
def test_settings_have_to_be_as_many_as_groups(name) -> None:
    with pytest.raises(TypeError, match=rf"^len\({name}\) must match len\(patterns_list\)$"):
        group_parameters(None, [["a"], ["b"]], **{name: [0.1]})


def test_pattern_without_a_match_is_refused(model) -> None:
    with pytest.raises(ValueError, match="The pattern 'decoder' matches no parameter"):
        group_parameters(model, [["conv", "decoder"]])
    with pytest.raises(ValueError, match="The pattern 'decoder' matches no parameter"):
        freeze_parameters(model, ["conv", "decoder"])
    assert all(parameter.requires_grad for parameter in model.parameters())


# Freezing


def test_parameters_are_frozen(model) -> None:
    freeze_parameters(model, ["conv", r"head\.0"])
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    assert names_of(model, frozen) == ["conv.weight", "conv.bias", "head.0.weight", "head.0.bias"]


# Weights in place


def rounded(weight: torch.Tensor) -> torch.Tensor:
    wide = weight.detach().double().numpy()
    rest = tuple(range(1, wide.ndim))
    step = np.abs(wide).max(axis=rest, keepdims=True) / 127
    return torch.from_numpy(np.rint(wide / step) * step).float()


def test_weights_become_what_their_quantizers_make_of_them() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "linear": QuantLinear(5, 4),
            "conv": QuantConv2d(2, 3, 3),
            "plain": nn.Linear(3, 3),
            "cell": QuantLSTMCell(2, 2),
        }
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    parameters = dict(model.named_parameters())
    quant_weight_inplace(model)
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        if name in ("linear.weight", "conv.weight"):
            assert not torch.equal(parameter, before[name])
            torch.testing.assert_close(parameter.detach(), rounded(before[name]))
        else:
            assert torch.equal(parameter, before[name])


def test_real_quantization_in_place_is_warned_of(caplog) -> None:
    linear = QuantLinear(3, 2)
    linear.weight_quantizer._fake_quant = False
    with caplog.at_level(logging.WARNING, logger="qdqbert"):
        quant_weight_inplace(linear)
    assert "In-place real quantization is VERY dangerous" in caplog.text
    codes = linear.weight.detach()
    assert torch.equal(codes, codes.round())
    assert codes.abs().amax(dim=1).tolist() == [127, 127]
