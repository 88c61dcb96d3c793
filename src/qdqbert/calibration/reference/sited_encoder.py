"""Run an `EncoderModel` in PyTorch, with a quantizer at each site.

Graphs and engines are compared with it. Calibration sees its activations, and fake quantization
changes them. Its modules have the same paths as transformers' modules. States of [PAD] have no
meaning.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from qdqbert.calibration.quantizers.quantizer import Quantizer
from qdqbert.calibration.reference.body import ACTIVATIONS, run_head, run_norm, tensor_of
from qdqbert.calibration.reference.modules import QuantEmbedding, QuantizedLinear
from qdqbert.calibration.reference.sited_model import SitedModel
from qdqbert.encoders.model import (
    TAIL_STATES,
    Attention,
    Convolution,
    Embeddings,
    EncoderModel,
    Later,
    Layer,
    Linear,
    Norm,
    RelativePositions,
    Residual,
    Rotary,
    Table,
)
from qdqbert.encoders.sites import (
    linear_layers_of,
    module_parameters,
    modules_of,
    parent_of,
    sites_of,
    sites_of_layers,
    tables_of,
)
from qdqbert.quantization.spec import LOCAL, RESIDUAL, SiteGroup, linear_sites

RunTail = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Computes the outputs of a tail from its inputs, all by name."""


class SitedEncoder(nn.Module):
    """The forward pass of an `EncoderModel`.

    Attributes:
        quantizers: The quantizers by site.
        layer_paths: Paths of the encoder layers.
        layer_sites: Names of the sites in each encoder layer.
        output_names: Names of the tensors that `forward` returns, in order.
    """

    def __init__(
        self, model: EncoderModel, groups: Collection[SiteGroup], run_tail: RunTail | None = None
    ) -> None:
        """Make the modules of a model, with a disabled quantizer at every site.

        Args:
            model: The model in float, whose arrays are shared.
            groups: Groups of sites.
            run_tail: Computes the outputs of its tail; `None` leaves them out.
        """
        super().__init__()
        self._model, self._run_tail = model, run_tail
        names = [output.name for head in model.heads for output in head.outputs]
        if run_tail is not None and model.tail is not None:
            names += model.tail.outputs
        self.output_names = tuple(names)
        self.quantizers: dict[str, Quantizer] = {}
        self.layer_paths = tuple(path_of(layer) for layer in model.layers)
        # Tensors of arrays that are no parameter of a site, each made once.
        self._tensors: dict[int, tuple[NDArray[np.generic] | Later, Tensor]] = {}
        for path, layer in zip(self.layer_paths, model.layers, strict=True):
            _put(self, path, _EncoderLayer(self, layer))
        if "table" in groups:
            for table in tables_of(model):
                self._put_table(table)
        if "layer" in groups:
            for layer in model.layers:
                self._put_linears(layer)
        made = {each.site.name: each for each in self._quantizers()}
        for site in sites_of(model, groups):
            if site.name not in made:
                made[site.name] = Quantizer(site=site)
                _put(self, site.name, made[site.name])
            self.quantizers[site.name] = made[site.name]
            made[site.name].disable()
        self.layer_sites = tuple(
            frozenset(site.name for site in sites) & self.quantizers.keys()
            for sites in sites_of_layers(model)
        )
        self.eval()

    @property
    def sited(self) -> SitedModel:
        """The model with its quantizers."""
        return SitedModel(model=self, quantizers=self.quantizers)

    @property
    def hidden_size(self) -> int:
        """Number of channels of the states."""
        return len(self._model.layers[0].down.bias)

    def _quantizers(self) -> Iterator[Any]:
        yield from (module for module in self.modules() if isinstance(module, Quantizer))

    def _put_table(self, table: Table) -> None:
        weight = self.tensor(table.rows)
        rows, width = weight.shape
        # With a weight, PyTorch does not draw random numbers.
        module = nn.Embedding(rows, width, _weight=weight, _freeze=True)
        _put(self, table.module, QuantEmbedding.from_float(module, name=table.module))

    def _put_linears(self, layer: Layer) -> None:
        sources = {linear.module: source for linear, source in linear_layers_of(layer)}
        for parts in modules_of(linear for linear, _ in linear_layers_of(layer)):
            path = parts[0].module
            weight, bias = (self.tensor(array) for array in module_parameters(parts))
            module = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
            module.weight = nn.Parameter(weight, requires_grad=False)
            module.bias = nn.Parameter(bias, requires_grad=False)
            made = QuantizedLinear.from_float(module)
            made._input_quantizer.site, made._weight_quantizer.site = linear_sites(
                path, sources[path], weight.shape[1]
            )
            _put(self, path, made)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the outputs, float32.

        Args:
            input_ids: `(batch, seq)` or `(batch, choices, seq)`, int64.
            attention_mask: Same shape and dtype, 0 for [PAD].
            token_type_ids: Same shape and dtype, if the model takes them.
        """
        x, mask = self.embed(input_ids, attention_mask, token_type_ids)
        masks = Masks(mask)
        for index in range(len(self._model.layers)):
            x = self.run_layer(index, x, masks)
        return self.finish(x, input_ids, attention_mask, token_type_ids)

    def finish(
        self,
        x: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the outputs for the states after the last layer, `(texts, seq, hidden)`.

        The other arguments are the same as of `forward`.
        """
        model, shape = self._model, input_ids.shape
        mask = attention_mask.reshape(-1, shape[-1])
        x = self.norm(x, model.final_norm)
        outputs: dict[str, Tensor] = {}
        for head in model.heads:
            made = run_head(x, mask, head, self.tensor)
            for output in head.outputs:
                found = made if output.column is None else made[..., output.column]
                if model.has_choices:
                    found = found.reshape(*shape[:2], *found.shape[1:])
                outputs[output.name] = found
        if self._run_tail is not None and model.tail is not None:
            given = {"input_ids": input_ids, "attention_mask": attention_mask, TAIL_STATES: x}
            if token_type_ids is not None:
                given["token_type_ids"] = token_type_ids
            known = given | outputs
            outputs |= self._run_tail({name: known[name] for name in model.tail.inputs})
        return tuple(outputs[name] for name in self.output_names)

    def embed(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the input of the first layer, and the mask of its texts; see `forward`.

        Returns:
            States `(texts, seq, hidden)`, float32, and the mask `(texts, seq)`. The texts of a
            batch are its choices, if the model has some.
        """
        ids, mask = (each.reshape(-1, each.shape[-1]) for each in (input_ids, attention_mask))
        types = None if token_type_ids is None else token_type_ids.reshape(ids.shape)
        ids, mask = self._filled(ids, mask)
        return self._embed(self._model.embeddings, ids, mask, types), mask

    def with_states(self, input_ids: Tensor, attention_mask: Tensor, **others: Tensor) -> Tensor:
        """Return the mask of the tokens whose states are needed, `(texts, seq)`.

        Tokens that expand queries have states, even with mask 0, where no token attends to them.
        """
        del others
        ids, mask = (each.reshape(-1, each.shape[-1]) for each in (input_ids, attention_mask))
        ids, mask = self._filled(ids, mask)
        if self._model.expansion_id is None:
            return mask
        return ((mask != 0) | (ids == self._model.expansion_id)).to(mask.dtype)

    def _filled(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids and mask of texts that are filled up, if the model needs that."""
        token = self._model.filled_id
        if token is None:
            return ids, mask
        room = (0, self._model.limit - ids.shape[1])
        ids = functional.pad(torch.where(mask != 0, ids, token), room, value=token)
        return ids, torch.ones_like(ids)

    def run_layer(self, index: int, x: Tensor, masks: Masks) -> Tensor:
        """Return the states after a layer, `(texts, seq, hidden)`."""
        made: Tensor = self.get_submodule(self.layer_paths[index])(x, masks)
        convolution = self._model.convolution
        if index == 0 and convolution is not None:
            made = self._convolve(made, x, masks.text, convolution)
        return made

    def tensor(self, array: NDArray[np.generic] | Later) -> Tensor:
        """Return the tensor of an array, which shares its memory."""
        if id(array) not in self._tensors:
            # The array stays alive, so that no other one gets its id.
            self._tensors[id(array)] = (array, tensor_of(array))
        return self._tensors[id(array)][1]

    def at(self, site: str, x: Tensor) -> Tensor:
        """Quantize a tensor at a site, if the site has a quantizer."""
        quantizer = self.quantizers.get(site)
        if quantizer is None:
            return x
        made: Tensor = quantizer(x)
        return made

    def read(self, x: Tensor, layers: Sequence[Linear]) -> list[Tensor]:
        """Return the outputs of linear layers that read the same tensor."""
        made: dict[str, Tensor] = {}
        outputs = []
        for layer in layers:
            if f"{layer.module}._input_quantizer" not in self.quantizers:
                outputs.append(self.linear(x, layer))
                continue
            if layer.module not in made:
                made[layer.module] = self.get_submodule(layer.module)(x)
            outputs.append(made[layer.module][..., layer.first : layer.first + len(layer.bias)])
        return outputs

    def linear(self, x: Tensor, layer: Linear) -> Tensor:
        """Return the output of a linear layer without sites."""
        return functional.linear(x, self.tensor(layer.weight), self.tensor(layer.bias))

    def norm(self, x: Tensor, norm: Norm | None) -> Tensor:
        """Return a normalized tensor."""
        if norm is None:
            return x
        return run_norm(x, norm, self.tensor)

    def _embed(
        self, embeddings: Embeddings, ids: Tensor, mask: Tensor, types: Tensor | None
    ) -> Tensor:
        x = self._look_up(embeddings.words, ids) * embeddings.factor
        if embeddings.dropped_id is not None:
            others = (mask * (ids != embeddings.dropped_id)).sum(dim=1)
            x = x * (mask.sum(dim=1) / others.clamp(min=1))[:, None, None]
        if embeddings.token_types is not None:
            given = torch.zeros((), dtype=torch.int64) if types is None else types
            x = x + self._look_up(embeddings.token_types, given.to(ids.device))
        if embeddings.positions is not None:
            places = torch.arange(ids.shape[1], device=ids.device)
            if embeddings.padding_id is not None:
                counted = ids != embeddings.padding_id
                places = counted.cumsum(dim=1) * counted
            x = x + self._look_up(embeddings.positions, embeddings.first_position + places)
        x = self.norm(x, embeddings.norm)
        return x if embeddings.projection is None else self.linear(x, embeddings.projection)

    def _look_up(self, table: Table, rows: Tensor) -> Tensor:
        if f"{table.module}._weight_quantizer" not in self.quantizers:
            return functional.embedding(rows, self.tensor(table.rows))
        found: Tensor = self.get_submodule(table.module)(rows)
        return found

    def _convolve(
        self, x: Tensor, embedded: Tensor, mask: Tensor, convolution: Convolution
    ) -> Tensor:
        weight = convolution.linear.weight
        hidden = len(weight)
        near = weight[:].reshape(hidden, -1, hidden).transpose(0, 2, 1)
        channels = (embedded * mask[..., None]).transpose(1, 2)
        added = functional.conv1d(
            channels,
            torch.from_numpy(np.ascontiguousarray(near, np.float32)),
            self.tensor(convolution.linear.bias),
            padding="same",
        )
        activated = ACTIVATIONS[convolution.activation](added.transpose(1, 2))
        return self.norm(x + activated, convolution.norm)


class Masks:
    """Additive masks of the scores of a batch, made once for each kind of attention.

    Attributes:
        text: The mask of the texts, `(texts, seq)`, 0 for [PAD].
        distance: `(seq, seq)`, int64: `[i, j]` is j - i.
    """

    def __init__(self, text: Tensor) -> None:
        """Begin with the mask of the texts, `(texts, seq)`, 0 for [PAD]."""
        self.text = text
        self._made: dict[tuple[bool, int | None], Tensor] = {}
        places = torch.arange(text.shape[1], device=text.device)
        self.distance = places - places[:, None]

    def additive(self, attention: Attention) -> Tensor:
        """Return 0, or the lowest number for pairs that do not attend; `(batch, 1, ..., seq)`."""
        key = (attention.causal, attention.window)
        if key not in self._made:
            masked = (self.text == 0)[:, None, None]
            if attention.causal:
                masked = masked | (self.distance > 0)
            if attention.window is not None:
                masked = masked | (self.distance.abs() > attention.window)
            lowest = torch.finfo(torch.float32).min
            self._made[key] = torch.zeros_like(masked, dtype=torch.float32).masked_fill(
                masked, lowest
            )
        return self._made[key]

    def attends(self, attention: Attention) -> Tensor:
        """Return which tokens attend to one or more tokens, `(batch, 1, ..., 1)`, bool."""
        return (self.additive(attention) == 0).any(dim=-1, keepdim=True)


class _EncoderLayer(nn.Module):
    """An encoder layer. Its modules are the model's, at its path."""

    def __init__(self, model: SitedEncoder, layer: Layer) -> None:
        super().__init__()
        # In a tuple, so that it is not registered as a child.
        self._parent, self._layer = (model,), layer

    def forward(self, x: Tensor, masks: Masks) -> Tensor:
        """Map states `(texts, seq, hidden)` to states of that shape."""
        (model,), layer = self._parent, self._layer
        attended = self._attend(model.norm(x, layer.attention_norm), layer.attention, masks)
        x = self._add(attended, x, layer.attention_residual, parent_of(layer.attention.output))
        normed = model.norm(x, layer.up_norm)
        wide, *gates = model.read(normed, [layer.up, *filter(None, [layer.gate])])
        wide = model.at(f"{parent_of(layer.up)}.activation_input_quantizer", wide)
        wide = ACTIVATIONS[layer.activation](wide)
        for gate in gates:
            wide = wide * gate
        (local,) = model.read(wide, [layer.down])
        path = parent_of(layer.down)
        x = self._add(local, x, layer.residual, path)
        return model.at(f"{path}.layernorm_output_quantizer", x)

    def _add(self, local: Tensor, states: Tensor, residual: Residual, path: str) -> Tensor:
        (model,) = self._parent
        local = model.norm(local, residual.local_norm)
        total = model.at(f"{path}{LOCAL}", local) + model.at(f"{path}{RESIDUAL}", states)
        total = model.at(f"{path}.layernorm_input_quantizer", total)
        x = model.norm(total, residual.norm)
        return x if residual.again is None else model.norm(x + states, residual.again)

    def _attend(self, x: Tensor, attention: Attention, masks: Masks) -> Tensor:
        (model,) = self._parent
        path, parts = parent_of(attention.query), (attention.query, attention.key, attention.value)
        norms = (attention.query_norm, attention.key_norm, None)
        query, key, value = (
            model.norm(_in_heads(each, attention.heads), norm)
            if attention.norms_each_head
            else _in_heads(model.norm(each, norm), attention.heads)
            for each, norm in zip(model.read(x, parts), norms, strict=True)
        )
        if attention.rotary is not None:
            query, key = (self._rotate(each, attention.rotary) for each in (query, key))
        turned = key.transpose(2, 3)
        if attention.scales_keys:
            turned = turned * attention.scale
        scores = torch.matmul(
            model.at(f"{path}.matmul_q_input_quantizer", query),
            model.at(f"{path}.matmul_k_input_quantizer", turned),
        )
        scores = model.at(f"{path}.softmax_input_quantizer", scores)
        if not attention.scales_keys:
            scores = scores * attention.scale
        if attention.relative is not None:
            relative = self._relative(query, key, attention.relative, masks.distance)
            scores = scores + relative * attention.scale
        if attention.position_bias is not None:
            middle = attention.position_bias.shape[1] // 2
            scores = scores + model.tensor(attention.position_bias)[:, masks.distance + middle]
        scores = scores + masks.additive(attention)
        probabilities = functional.softmax(scores, dim=-1)
        probabilities = model.at(f"{path}.matmul_a_input_quantizer", probabilities)
        value = model.at(f"{path}.matmul_v_input_quantizer", value)
        context = torch.matmul(probabilities, value)
        if attention.window is not None:
            # Tokens that expand a query may be far from it. Their context is 0, as in transformers.
            context = context * masks.attends(attention)
        (output,) = model.read(context.transpose(1, 2).flatten(2), [attention.output])
        return output

    def _rotate(self, x: Tensor, rotary: Rotary) -> Tensor:
        (model,) = self._parent
        first, second = x.chunk(2, dim=-1)
        cos, sin = (model.tensor(each)[: x.shape[2]] for each in (rotary.cos, rotary.sin))
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def _relative(
        self, query: Tensor, key: Tensor, relative: RelativePositions, distance: Tensor
    ) -> Tensor:
        """Return the relative scores, by the distance of query and key, not scaled."""
        (model,) = self._parent
        rows = model.tensor(relative.rows)[distance + len(relative.rows) // 2].long()
        total = torch.zeros(())
        shape = (*query.shape[:2], *rows.shape)
        if relative.keys is not None:
            products = torch.matmul(query, model.tensor(relative.keys).transpose(1, 2))
            total = total + products.gather(3, rows.expand(shape))
        if relative.queries is not None:
            products = torch.matmul(key, model.tensor(relative.queries).transpose(1, 2))
            total = total + products.gather(3, rows.T.expand(shape)).transpose(2, 3)
        return total


def path_of(layer: Layer) -> str:
    """Return the path of an encoder layer: the common prefix of its linear layers."""
    paths = [linear.module.split(".") for linear, _ in linear_layers_of(layer)]
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in shared)


def _in_heads(x: Tensor, heads: int) -> Tensor:
    """Return `(texts, heads, seq, size)` of `(texts, seq, heads * size)`."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _put(root: nn.Module, path: str, module: nn.Module) -> None:
    """Add a module at a path, and create missing parents."""
    *around, name = path.split(".")
    for part in around:
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(name, module)
