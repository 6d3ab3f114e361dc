"""Larger transformers that compute what a smaller one does, to go on training from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Sequence, Union

import torch
from torch import nn

from ..errors import InvalidArgument
from .foreign_words import described

__all__ = ["Block", "Expansion", "Layout", "expand"]

Source = Union[nn.Module, nn.Parameter]


@dataclass(frozen=True)
class Block:
    """A block of a transformer: attention and a network of two layers, each with a norm and a way around it.

    qkv: a layer that makes queries, keys and values one behind the other, a nn.MultiheadAttention, or three layers.
    out: the layer behind attention; None with a nn.MultiheadAttention, which has it.
    expand, shrink: the layers of the network.
    """

    norm1: nn.Module
    qkv: Union[nn.Module, Sequence[nn.Module]]
    out: nn.Module | None
    norm2: nn.Module
    expand: nn.Module
    shrink: nn.Module


@dataclass(frozen=True)
class Layout:
    """The places of a transformer's parameters, as expand() has to know them. The stream is what blocks add to.

    width, heads: of the stream, and of each block's attention.
    writes: what makes the stream: nn.Embedding, nn.Linear, nn.Conv2d, and parameters of its width in the last dimension.
    norm: the last one, behind the blocks; None without.
    reads: linear layers that are given what the norm makes, or the stream without one.
    first_norm: one before the blocks, as BERT has.
    between: linear layers of the stream's width between norm and `reads`, one behind the other, with an activation and
        perhaps a norm behind it: (layer, norm or None).
    has_post_norm: the norms of blocks come behind the sums, as in nn.TransformerEncoder by default and in BERT.
    """

    width: int
    heads: int
    writes: Sequence[Source]
    blocks: Sequence[Block]
    norm: nn.Module | None = None
    reads: Sequence[nn.Module] = ()
    first_norm: nn.Module | None = None
    between: Sequence[tuple[nn.Module, nn.Module | None]] = ()
    has_post_norm: bool = False


@dataclass(frozen=True)
class Expansion:
    """What expand() has done.

    width, heads, layers: (of the small model, of the large one).
    origins: where the values of each parameter of the large model come from, by its name.
    epsilons: those of its norms by name, where widths are no multiples; a state_dict() does not have them.
    """

    width: tuple[int, int]
    heads: tuple[int, int]
    layers: tuple[int, int]
    origins: dict[str, str] = field(repr=False)
    epsilons: dict[str, float] = field(repr=False)

    def set_epsilons(self, module: nn.Module) -> None:
        """For a model that is built like the large one and loads its state_dict(): gives its norms their epsilons."""
        modules = dict(module.named_modules())
        missing = [name for name in self.epsilons if not hasattr(modules.get(name), "eps")]
        if missing:
            raise InvalidArgument(
                f"{described(module)} has no norm {missing[0]!r}: it is not built like the large model"
            )
        for name, epsilon in self.epsilons.items():
            modules[name].eps = epsilon  # type: ignore[assignment]


@torch.no_grad()
def expand(
    model: nn.Module,
    target: nn.Module,
    *,
    layout: Callable[[Any], Layout] | None = None,
    inputs: Any = None,
) -> Expansion:
    """Gives a larger transformer the function of a smaller one, so that training goes on from its loss (LEMON, arXiv
    2310.07999). `target`, a fresh one, is changed in place; its own first values are what makes copies differ.

        large = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_head=16, n_layer=36))
        print(bdn.algorithms.expand(small, large, inputs=tokens))
        optimizer = torch.optim.AdamW(large.parameters(), lr)      # Moments begin at 0, and the rate falls sooner.

    target: of the same class, as wide and deep or more so, and of heads of the same size. The width may be no multiple of
        the small one's, and there may be more layers, unless norms come behind the sums (post-norm, as in BERT).
    layout: a function that says of a model where its parameters are. None: of GPT2Model, GPT2LMHeadModel, BERT and ViT
        of transformers, and of a module with one nn.TransformerEncoder, before which embeddings make the stream and
        behind which come a norm and nn.Linear.
    inputs: a batch of the model, a tensor or a dict of arguments, for which both are to compute the same; if they do
        not, `target` is as it was, and InvalidArgument says by how much. Recommended, for what forward() does besides
        is not seen otherwise.

    A model without a layer that reads the stream (GPT2Model) returns a wider one: copies of the small one's behind each
    other, and what is left over behind them. A nn.TransformerEncoder alone is to be given such a stream, too, with the
    mean of the small one's as what is left over. InvalidArgument, before anything is changed, names what is not
    supported.
    """
    _check(model, target)
    find = layout or _known_layout
    small, large = find(model), find(target)
    _check_computes_alike(model, target, len(large.blocks) > len(small.blocks))
    plan = _Plan(model, target, small, large)
    plan.make()
    if inputs is None:
        plan.apply()
        return plan.expansion()
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    epsilons = [(norm, norm.eps) for norm in target.modules() if hasattr(norm, "eps")]
    expected = _output(model, inputs)
    plan.apply()
    off = _difference(expected, _output(target, inputs))
    allowed = 1e-4 if expected.dtype == torch.float32 else 1e-9 if expected.dtype == torch.float64 else 0.05
    if not off <= allowed:
        target.load_state_dict(before)
        for norm, epsilon in epsilons:
            norm.eps = epsilon
        plan.set_config(restore=True)
        raise InvalidArgument(
            f"the large model computes something else than the small one, {off:.1e} of its largest output off, and was "
            "left as it was: forward() does something that the layout does not say, such as a factor that depends on the "
            "width"
        )
    return plan.expansion()


def _check(model, target):
    for name, module in (("model", model), ("target", target)):
        if not isinstance(module, nn.Module):
            raise InvalidArgument(f"{name}: expand(model, target) takes two modules, and got {described(module)}")
    if model is target:
        raise InvalidArgument("model and target are one module: make a larger one of the same class first")
    if type(model) is not type(target):
        raise InvalidArgument(
            f"model is {described(model)}, and target {described(target)}: they have to be of one class"
        )


def _check_computes_alike(model, target, is_deeper):
    """Of what is no parameter, as far as it is known here."""
    configs = [getattr(module, "config", None) for module in (model, target)]
    for name in ("activation_function", "hidden_act", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"):
        less, more = (getattr(config, name, None) for config in configs)
        if less != more:
            raise InvalidArgument(f"the target's configuration has {name}={more!r}, and the model's {less!r}")
        if name == "scale_attn_by_inverse_layer_idx" and more and is_deeper:
            raise InvalidArgument(f"{name}=True and more layers: attention would be scaled by other layers' numbers")
    layers = [[m for m in module.modules() if isinstance(m, nn.TransformerEncoderLayer)] for module in (model, target)]
    for one, other in zip(*layers):
        less, more = (getattr(layer.activation, "__name__", type(layer.activation).__name__) for layer in (one, other))
        if less != more:
            raise InvalidArgument(f"the target's layers have activation={more}, and the model's {less}")


def _output(module, inputs):
    was_training = module.training
    module.eval()
    try:
        result = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    finally:
        module.train(was_training)
    if not isinstance(result, torch.Tensor):
        result = result[0] if isinstance(result, (tuple, list)) or hasattr(result, "keys") else result
    if not isinstance(result, torch.Tensor):
        raise InvalidArgument(f"inputs: the model returns {described(result)}, and no tensor first, to compare")
    return result


def _difference(expected, found):
    if expected.shape[:-1] != found.shape[:-1] or expected.shape[-1] > found.shape[-1]:
        return float("inf")
    scale = expected.abs().max().clamp_min(1e-30)
    return ((found[..., : expected.shape[-1]] - expected).abs().max() / scale).item()


# ---- Axes ----


def _numbers(count):
    return torch.arange(count, dtype=torch.int64, device="cpu")


class _Axis:
    """How an axis of a tensor grows. origins: of each place in the large one the place in the small one that it copies;
    -1: left over."""

    def __init__(self, origins: torch.Tensor, small: int) -> None:
        self.origins, self.small = origins, small
        self.copied = origins >= 0
        self.counts = torch.bincount(origins[self.copied], minlength=small)

    @staticmethod
    def stream(small: int, large: int) -> _Axis:
        origins = _numbers(large) % small
        origins[large // small * small :] = -1
        return _Axis(origins, small)

    @staticmethod
    def circular(small: int, large: int, unit: int = 1) -> _Axis:
        """In units of so many, as of heads."""
        units = _numbers(large // unit) % (small // unit)
        return _Axis((units[:, None] * unit + _numbers(unit)).reshape(-1), small)

    def written(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of what writes along this axis: copies, and means of all for what is left over, which leaves the
        mean of the stream as it is."""
        rows = values[self.origins.clamp_min(0)]
        rows[~self.copied] = values.mean(0)
        return rows

    def read(self, values: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """The columns of what reads along this axis: its own first values, less what the sum over the copies of a
        place differs by from the small one's. Of those left over the sum is 0, for they are all equal or 0."""
        origins = self.origins[self.copied]
        sums = torch.zeros_like(values).index_add_(1, origins, first[:, self.copied])
        columns = first.clone()
        columns[:, self.copied] -= ((sums - values) / self.counts)[:, origins]
        left_over = first[:, ~self.copied]
        columns[:, ~self.copied] = left_over - left_over.mean(1, keepdim=True) if left_over.shape[1] else left_over
        return columns


# ---- Parts of models ----


def _is_conv1d(module):
    """transformers' Conv1D, a linear layer whose weight is transposed."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _linear(module, name):
    """(weight of shape outputs x inputs, bias or None) as views into the module's parameters."""
    if isinstance(module, nn.Linear):
        return module.weight, module.bias
    if _is_conv1d(module):
        return module.weight.t(), module.bias
    raise InvalidArgument(f"{name}: {described(module)} is neither a nn.Linear nor a Conv1D")


def _attention(block):
    """[(weight, bias) of queries, keys and values], and those of the layer behind."""
    if isinstance(block.qkv, nn.MultiheadAttention):
        attention = block.qkv
        if attention.in_proj_weight is None or attention.bias_k is not None or attention.add_zero_attn:
            raise InvalidArgument(
                "a nn.MultiheadAttention with kdim=, vdim=, add_bias_kv= or add_zero_attn= is not supported"
            )
        weight, bias, out = attention.in_proj_weight, attention.in_proj_bias, attention.out_proj
    elif isinstance(block.qkv, nn.Module):
        (weight, bias), out = _linear(block.qkv, "qkv"), block.out
    else:
        if len(block.qkv) != 3:
            raise InvalidArgument(f"qkv has {len(block.qkv)} layers, and not three")
        return [_linear(module, "qkv") for module in block.qkv], _linear(block.out, "out")
    biases = bias.chunk(3) if bias is not None else [None] * 3
    return list(zip(weight.chunk(3), biases)), _linear(out, "out")


def _memory(tensor):
    """The same of a parameter and of all views into it."""
    return tensor.untyped_storage().data_ptr()


class _Plan:
    """New values for every parameter of the target, before any is changed."""

    def __init__(self, model, target, small, large):
        self._model, self._target, self._small, self._large = model, target, small, large
        self._names = {_memory(param): name for name, param in target.named_parameters()}
        self._changes = []  # (view, values)
        self._origins = {}
        self._epsilons = []  # (norm, epsilon)
        self._config_before = None

    def make(self):
        small, large = self._small, self._large
        self._check_sizes()
        self.copies = large.width // small.width
        self.left_over = large.width % small.width
        self.stream = _Axis.stream(small.width, large.width)
        self._head_size = small.width // small.heads
        self._check_norms()
        self._writes()
        if small.first_norm is not None:
            self._norm(small.first_norm, large.first_norm)
        places = [j * len(large.blocks) // len(small.blocks) for j in range(len(small.blocks))]
        for index, block in enumerate(large.blocks):
            if index in places:
                self._block(small.blocks[places.index(index)], block, places.index(index))
            else:
                self._new_block(block)
        self._behind()
        self._check_complete()

    def _check_sizes(self):
        small, large = self._small, self._large
        for what, less, more in (
            ("width", small.width, large.width),
            ("heads", small.heads, large.heads),
            ("layers", len(small.blocks), len(large.blocks)),
        ):
            if more < less:
                raise InvalidArgument(f"target has {what} {more}, less than the model's {less}")
        if not small.blocks or small.width % small.heads or large.width % large.heads:
            raise InvalidArgument("a model has no blocks, or a width that is no multiple of its heads")
        sizes = small.width // small.heads, large.width // large.heads
        if sizes[0] != sizes[1]:
            raise InvalidArgument(
                f"target has heads of {sizes[1]}, and the model of {sizes[0]}: give it {large.width / sizes[0]:g} heads"
            )
        if small.has_post_norm != large.has_post_norm:
            raise InvalidArgument("one of model and target has norms behind the sums, and the other before the layers")
        if small.has_post_norm and large.width % small.width:
            raise InvalidArgument(
                f"width {large.width} is no multiple of {small.width}, and the norms come behind the sums (post-norm): "
                "what is left over would have to be the mean of the stream, which such a norm does not keep. Use a multiple"
            )
        if small.has_post_norm and len(large.blocks) > len(small.blocks):
            raise InvalidArgument(
                f"target has {len(large.blocks)} layers, the model {len(small.blocks)}, and the norms come behind the "
                "sums (post-norm): a new block would not be the identity. Use as many"
            )
        for what in ("writes", "reads", "between"):
            if len(getattr(small, what)) != len(getattr(large, what)):
                raise InvalidArgument(f"the layouts of model and target have unequally many in {what}")
        for what in ("norm", "first_norm"):
            if (getattr(small, what) is None) != (getattr(large, what) is None):
                raise InvalidArgument(f"one of model and target has no {what}")

    def _check_norms(self):
        if self.left_over and (self._small.first_norm is not None or any(norm for _, norm in self._small.between)):
            raise InvalidArgument("a norm before the blocks, or between layers behind them, needs a multiple of the width")

    def _check_complete(self):
        known = {_memory(view) for view, _, _ in self._changes}
        for name, param in self._target.named_parameters():
            if _memory(param) not in known and param.numel():
                raise InvalidArgument(
                    f"nothing says what {name!r} of {described(self._target)} is for: give a layout= that has it"
                )

    def _set(self, view, values, origin):
        if view.shape != values.shape:
            raise InvalidArgument(
                f"{self._name(view)} is of shape {list(view.shape)}, and {list(values.shape)} is needed"
            )
        self._changes.append((view, values, origin))

    def _name(self, view):
        """Of the parameter that it is a view into."""
        return self._names.get(_memory(view), "a parameter")

    def _layer(self, small, large, out, inputs, origin):
        """`out`, `inputs`: the _Axis of each, None of one that does not grow."""
        (weight, bias), (large_weight, large_bias) = small, large
        if (bias is None) != (large_bias is None):
            raise InvalidArgument("a layer has a bias in one of model and target only")
        weight, first = weight.to(large_weight), large_weight
        for axis, dimension in ((out, 0), (inputs, 1)):
            expected = (weight.shape[dimension],) * 2 if axis is None else (axis.small, len(axis.origins))
            if (weight.shape[dimension], large_weight.shape[dimension]) != expected:
                raise InvalidArgument(
                    f"{self._name(large_weight)} is of shape {list(large_weight.shape)}, and the model's of "
                    f"{list(weight.shape)}: from {expected[0]} to {expected[1]} was expected in dimension {dimension}"
                )
        if out is self.stream:
            # The copies that are written are to be equal, so they have the first values of one.
            weight = out.written(inputs.read(weight, first[: out.small]) if inputs is not None else weight)
        else:
            weight = out.written(weight) if out is not None else weight
            weight = inputs.read(weight, first) if inputs is not None else weight
        self._set(large_weight, weight, origin)
        if bias is not None:
            self._set(large_bias, out.written(bias.to(large_bias)) if out is not None else bias.to(large_bias), origin)

    def _norm(self, small, large, scale=1.0):
        for norm in (small, large):
            if not isinstance(norm, nn.LayerNorm):
                raise InvalidArgument(f"{described(norm)} is not a nn.LayerNorm, the one norm that is supported")
        if (small.weight is None) != (large.weight is None) or (small.bias is None) != (large.bias is None):
            raise InvalidArgument("a norm has a weight or bias in one of model and target only")
        if small.weight is None and (self.left_over or scale != 1):
            raise InvalidArgument("a norm without a weight needs a multiple of the width, and no tied head")
        share = self.copies * self._small.width / self._large.width  # Of the stream that has any variance.
        for name, factor, rest in (("weight", share**0.5, 1.0), ("bias", 1.0, 0.0)):
            values, view = getattr(small, name), getattr(large, name)
            if values is not None:
                grown = self.stream.written(values.to(view)) * factor * scale
                grown[~self.stream.copied] = rest
                self._set(view, grown, "copied")
        self._epsilons.append((large, small.eps * share))

    def _writes(self):
        for small, large in zip(self._small.writes, self._large.writes):
            if isinstance(small, nn.Embedding):
                pairs = [(small.weight.t(), large.weight.t())]
            elif isinstance(small, nn.Conv2d):
                pairs = [(small.weight, large.weight)] + ([(small.bias, large.bias)] if small.bias is not None else [])
            elif isinstance(small, nn.Parameter):
                pairs = [(small.movedim(-1, 0), large.movedim(-1, 0))]
            else:
                self._layer(_linear(small, "writes"), _linear(large, "writes"), self.stream, None, "copied")
                continue
            for values, view in pairs:
                if values.shape[1:] != view.shape[1:] or values.shape[0] != self._small.width:
                    raise InvalidArgument(
                        f"{self._name(view)} is of shape {list(view.shape)}, and the model's of {list(values.shape)}: "
                        "they have to be equal but for the width"
                    )
                self._set(view, self.stream.written(values.to(view)), "copied")

    def _block(self, small, large, number):
        origin = f"block {number}"
        small_qkv, small_out = _attention(small)
        large_qkv, large_out = _attention(large)
        width = self._small.width, self._large.width
        heads = _Axis.circular(*width, self._head_size)
        self._norm(small.norm1, large.norm1)
        for one, other in zip(small_qkv, large_qkv):
            self._layer(one, other, heads, self.stream, origin)
        self._layer(small_out, large_out, self.stream, heads, origin)
        self._norm(small.norm2, large.norm2)
        one, other = _linear(small.expand, "expand"), _linear(large.expand, "expand")
        sizes = one[0].shape[0], other[0].shape[0]
        if sizes[1] < sizes[0]:
            raise InvalidArgument(f"target has {sizes[1]} neurons in a block, less than the model's {sizes[0]}")
        neurons = _Axis.circular(*sizes)
        self._layer(one, other, neurons, self.stream, origin)
        self._layer(_linear(small.shrink, "shrink"), _linear(large.shrink, "shrink"), self.stream, neurons, origin)

    def _new_block(self, block):
        """Its own first values, and zeros where it adds to the stream."""
        qkv, out = _attention(block)
        kept = [view for pair in (*qkv, _linear(block.expand, "expand")) for view in pair if view is not None]
        kept += [view for norm in (block.norm1, block.norm2) for view in (norm.weight, norm.bias) if view is not None]
        for view in kept:
            self._set(view, view.clone(), "a new block")
        for pair in (out, _linear(block.shrink, "shrink")):
            for view in pair:
                if view is not None:
                    self._set(view, torch.zeros_like(view), "a new block, 0")

    def _behind(self):
        small, large = self._small, self._large
        tied = [self._is_tied(layout) for layout in (small, large)]
        if tied[0] != tied[1]:
            raise InvalidArgument("one of model and target has its head tied to the embedding, and the other has not")
        # A tied head adds up all copies, so what it reads is divided by their number.
        last = 1 / self.copies if tied[0] else 1.0
        norms = [norm for _, norm in small.between]
        if tied[0] and (norms[-1] if norms else small.norm) is None:
            raise InvalidArgument("the head is tied to the embedding, and no norm before it can divide by the copies")
        if small.norm is not None:
            self._norm(small.norm, large.norm, 1.0 if norms else last)
        inputs = self.stream
        circular = _Axis.circular(small.width, large.width)
        for number, ((layer, norm), (large_layer, large_norm)) in enumerate(zip(small.between, large.between), 1):
            self._layer(_linear(layer, "between"), _linear(large_layer, "between"), circular, inputs, "behind the blocks")
            inputs = circular
            if norm is not None:
                self._norm(norm, large_norm, last if number == len(norms) else 1.0)
        for one, other in zip(small.reads, large.reads):
            if tied[0] and any(one.weight is getattr(source, "weight", None) for source in small.writes):
                if one.bias is not None:
                    self._set(other.bias, one.bias.to(other.bias), "copied")
                continue
            self._layer(_linear(one, "reads"), _linear(other, "reads"), None, inputs, "behind the blocks")

    @staticmethod
    def _is_tied(layout):
        return any(read.weight is getattr(source, "weight", None) for read in layout.reads for source in layout.writes)

    def apply(self):
        for view, values, _ in self._changes:
            view.copy_(values)
        for norm, epsilon in self._epsilons:
            norm.eps = epsilon
        self.set_config()

    def set_config(self, restore=False):
        """The configuration of transformers' models has the epsilon, with which they are built again."""
        config = getattr(self._target, "config", None)
        for name in ("layer_norm_epsilon", "layer_norm_eps"):
            if hasattr(config, name) and self._epsilons:
                if not restore:
                    self._config_before = getattr(config, name)
                setattr(config, name, self._config_before if restore else self._epsilons[0][1])

    def expansion(self):
        names = {id(module): name for name, module in self._target.named_modules()}
        origins = {self._name(view): origin for view, _, origin in self._changes}
        epsilons = {names[id(norm)]: epsilon for norm, epsilon in self._epsilons} if self.left_over else {}
        small, large = self._small, self._large
        return Expansion(
            (small.width, large.width),
            (small.heads, large.heads),
            (len(small.blocks), len(large.blocks)),
            origins,
            epsilons,
        )


# ---- Models that are known ----


def _known_layout(model):
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind in _OF_TRANSFORMERS:
        try:
            return _OF_TRANSFORMERS[kind](model)
        except AttributeError as error:
            raise InvalidArgument(
                f"{described(model)} of this version of transformers is not as expected ({error}): give a layout="
            ) from None
    encoders = [module for module in model.modules() if isinstance(module, nn.TransformerEncoder)]
    if len(encoders) == 1:
        return _of_encoder(model, encoders[0])
    raise InvalidArgument(
        f"{described(model)} is none of transformers' GPT-2, BERT and ViT, and has {len(encoders)} nn.TransformerEncoder "
        "and not one: give layout=, a function that makes a bandoneon.torch.expand.Layout of it"
    )


def _of_encoder(model, encoder):
    first = encoder.layers[0]
    blocks = [Block(e.norm1, e.self_attn, None, e.norm2, e.linear1, e.linear2) for e in encoder.layers]
    width = first.self_attn.embed_dim
    inside = set(encoder.modules())
    writes, reads, norms = [], [], [encoder.norm] if encoder.norm is not None else []
    for name, module in model.named_modules():
        if module in inside or module is model or not list(module.parameters(recurse=False)):
            continue
        if isinstance(module, nn.Embedding):
            writes.append(module)
        elif isinstance(module, nn.Linear) and module.out_features == width != module.in_features:
            writes.append(module)
        elif isinstance(module, nn.Linear) and module.in_features == width != module.out_features:
            reads.append(module)
        elif isinstance(module, nn.LayerNorm) and not norms:
            norms.append(module)
        else:
            raise InvalidArgument(
                f"{name!r}, {described(module)}, beside a nn.TransformerEncoder is none of nn.Embedding, one "
                "nn.LayerNorm behind it, and nn.Linear from or to the width: give layout="
            )
    writes += [p for p in model.parameters(recurse=False) if p.dim() and p.shape[-1] == width]
    norm = norms[0] if norms else None
    return Layout(
        width, first.self_attn.num_heads, writes, blocks, norm, reads, has_post_norm=not first.norm_first
    )


def _of_gpt2(model):
    body = getattr(model, "transformer", model)
    blocks = [Block(b.ln_1, b.attn.c_attn, b.attn.c_proj, b.ln_2, b.mlp.c_fc, b.mlp.c_proj) for b in body.h]
    reads = [getattr(model, name) for name in ("lm_head", "score") if hasattr(model, name)]
    return Layout(body.wte.embedding_dim, model.config.n_head, [body.wte, body.wpe], blocks, body.ln_f, reads)


def _of_bert(model):
    body = getattr(model, "bert", model)
    at_first = body.embeddings
    blocks = []
    for layer in body.encoder.layer:
        attention, output = layer.attention.self, layer.attention.output
        qkv = (attention.query, attention.key, attention.value)
        inner, outer = layer.intermediate, layer.output
        blocks.append(Block(output.LayerNorm, qkv, output.dense, outer.LayerNorm, inner.dense, outer.dense))
    between, reads = [], []
    if getattr(body, "pooler", None) is not None:
        between.append((body.pooler.dense, None))
    if hasattr(model, "cls"):
        head = model.cls.predictions
        between.append((head.transform.dense, head.transform.LayerNorm))
        reads.append(head.decoder)
    if hasattr(model, "classifier"):
        reads.append(model.classifier)
    writes = [at_first.word_embeddings, at_first.position_embeddings, at_first.token_type_embeddings]
    heads = model.config.num_attention_heads
    return Layout(
        model.config.hidden_size, heads, writes, blocks, None, reads, at_first.LayerNorm, between, has_post_norm=True
    )


def _of_vit(model):
    body = getattr(model, "vit", model)
    at_first = body.embeddings
    blocks = []
    for layer in body.layers:
        attention = layer.attention
        qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
        norms = layer.layernorm_before, layer.layernorm_after
        blocks.append(Block(norms[0], qkv, attention.o_proj, norms[1], layer.mlp.fc1, layer.mlp.fc2))
    between = [(body.pooler.dense, None)] if getattr(body, "pooler", None) is not None else []
    reads = [model.classifier] if isinstance(getattr(model, "classifier", None), nn.Linear) else []
    writes = [at_first.cls_token, at_first.position_embeddings, at_first.patch_embeddings.projection]
    heads = model.config.num_attention_heads
    return Layout(model.config.hidden_size, heads, writes, blocks, body.layernorm, reads, None, between)


_OF_TRANSFORMERS = {"gpt2": _of_gpt2, "bert": _of_bert, "vit": _of_vit}
