"""Muon: orthogonalised momentum for matrices, AdamW for everything else."""

from __future__ import annotations

import itertools
import math
import statistics
import time
import warnings
from typing import Any, Iterable

import torch

from ...errors import InvalidArgument
from ..hints import Closure
from ..hyperparameters import check_decays, check_not_negative
from ..shards import divided_like, local_of
from ..tensors import DTYPES
from ..whole_matrices import of_whole_matrices
from ..wrapped import evaluate
from .per_parameter import PerParameterOptimizer

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_NORM_EPS = 1e-7
_PRODUCTS = {"float32": None, "bfloat16": torch.bfloat16}  # None: what moments are kept in
_PACE_STEPS = 16
_WORTH_A_WORD = 0.005  # seconds: of tiny models everything takes as long as its calls
_clock = time.perf_counter
_STEP_LENGTH = 0.2  # The root of the mean square of an AdamW step, in learning rates (arXiv 2502.16982).

# Elements of a matrix up to which several take less time together. On one core of a CPU 12 of 16 x 16 take a ninth
# of it, 12 of 64 x 64 two thirds, and 24 of 128 x 128, which leave the cache, more than one by one.
_BATCHED_NUMEL = 8192


class Muon(PerParameterOptimizer):
    """Muon (Keller Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) for matrices, with steps as
    long as AdamW's (arXiv 2502.16982), so that one learning rate does for both; AdamW (1711.05101) for the rest.

    Of a matrix with gradient g, shape [rows, columns], b from 0:

        b <- mu b + g                           u = g + mu b
        X <- u / (|u| + 1e-7)                   |.| Euclidean; transposed where rows > columns
        X <- 3.4445 X - 4.7750 (X X^T) X + 2.0315 (X X^T)^2 X               5 times, Newton-Schulz
        x <- (1 - lr wd) x - lr 0.2 sqrt(max(rows, columns)) X              transposed back

    X has u's singular vectors, and singular values between 0.68 and 1.21 where u's are above 0.002 |u|. Of
    everything else, with step t from 1:

        m <- b1 m + (1 - b1) g                  v <- b2 v + (1 - b2) g^2
        x <- (1 - lr wd) x - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)

    A matrix is each parameter of two dimensions or more in a group that does not say matrices=False; a
    convolution's weights are one of [channels out, all else]. Embeddings and the output layer go into a group
    that does, as the authors have it; stacks of matrices, as those of experts, [experts, rows, columns], into one that says
    matrices="stacked", where each of them is orthogonalised by itself:

        blocks = list(model.blocks.parameters())
        others = [*model.embedding.parameters(), *model.head.parameters()]
        inner = bdn.algorithms.Muon([{"params": blocks}, {"params": others, "matrices": False}], lr=0.016)
        optimizer = bdn.LocalSteps(
            inner, model.named_parameters(), tau=8, outer=bdn.algorithms.Average(),
            push="ef(onebit(block=64))", pull="delta(onebit(block=64))")
        loss.backward()
        optimizer.step()

    lr: of matrices and all else.
    momentum: 0.95, mu. betas: (0.9, 0.95), b1 and b2. eps: 1e-8.
    weight_decay: 0.01, wd, of all; put biases and norms in a group of their own with 0.
    matrices: True; False in a group whose parameters are all stepped by AdamW; "stacked" in one whose parameters' last two
        dimensions are matrices.
    products: "float32", what Newton-Schulz's products are computed in (float64 of float64 parameters); or "bfloat16", as
        the authors have it, of matrices of more than 8192 elements: a quarter of the time where the processor
        multiplies bfloat16 itself (lscpu shows avx512_bf16 or amx_bf16), and longer where it does not.
    batched: small matrices of one shape are orthogonalised together, which saves time. What comes out may differ
        in the last bits by which are together, so overlap="forward" of DistributedOptimizer needs False.

    All but products and batched may differ by group. Takes float32, float64, and float16 and bfloat16, whose moments and
    steps are computed and kept in float32: only the new parameter is rounded. Gradients are dense. InvalidArgument
    says what does not fit, and nothing has changed then. Not thread-safe.

    A matrix of r rows and c columns, r <= c, costs 20 r^2 c + 10 r^3 operations a step, forward and backward pass 6 r c
    for each token of a worker's batch: so steps take 3 to 5 x width / tokens of their time. A warning says, once,
    where they take longer than all else between them; not on GPUs, nor with batched=False.

    Parameters may be DTensors, as FSDP2 and tensor parallelism make them. A matrix that FSDP2 has sharded is sent to one process
    of those that share it, orthogonalised there alone, and sent back; what is sharded along two dimensions of a mesh is gathered
    in all. All processes of a mesh step together then.

    State: one array a matrix, two of everything else, of the parameter's shape, and sharded as it. The products' bits are those of
    the machine's BLAS, number of threads and float32 matmul precision: give the workers under
    DistributedOptimizer the same ones. LocalSteps brings models together whatever they are.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        matrices: bool | str = True,
        *,
        products: str = "float32",
        batched: bool = True,
    ) -> None:
        if products not in _PRODUCTS:
            raise InvalidArgument(f"products={products!r} is neither 'float32' nor 'bfloat16'")
        defaults = dict(
            lr=lr,
            momentum=momentum,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            matrices=matrices,
        )
        # No options of groups, which load_state_dict() replaces.
        self._products = products
        self._batched = batched
        self._pace = _Pace()
        super().__init__(params, defaults)

    @property
    def steps_one_by_one(self) -> bool:
        return not self._batched

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)  # First, for it makes lists of what can be read only once.
        try:
            self._check_group(len(self.param_groups) - 1)
        except BaseException:
            del self.param_groups[-1]
            raise

    def _check_group(self, number):
        group = self.param_groups[number]
        check_not_negative(**{name: group[name] for name in ("lr", "eps", "weight_decay")})
        if not isinstance(group["betas"], (tuple, list)) or len(group["betas"]) != 2:
            raise InvalidArgument(f"betas={group['betas']!r} are not two numbers")
        check_decays(momentum=group["momentum"], beta1=group["betas"][0], beta2=group["betas"][1])
        if not isinstance(group["matrices"], bool) and group["matrices"] != "stacked":
            raise InvalidArgument(
                f"matrices={group['matrices']!r} is neither True nor False nor 'stacked'; put parameters that are not to be "
                "orthogonalised into a group of their own with matrices=False, and stacks of matrices into one with 'stacked'"
            )
        for index, param in enumerate(group["params"]):
            if param.dtype not in DTYPES:
                raise InvalidArgument(
                    f"{self._place(number, index)} is of {param.dtype}; Muon takes float32, float16, bfloat16 "
                    "and float64"
                )

    @staticmethod
    def _is_matrix(param, group):
        return group["matrices"] and param.ndim >= 2

    def _place(self, number, index):
        group = self.param_groups[number]
        if "param_names" in group:
            return repr(group["param_names"][index])
        return f"parameter {index} of group {number} (shape {list(group['params'][index].shape)})"

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        loss = evaluate(closure)
        for number, group in enumerate(self.param_groups):
            for index, param in enumerate(group["params"]):
                if param.grad is not None and param.grad.layout is not torch.strided:
                    raise InvalidArgument(
                        f"the gradient of {self._place(number, index)} is sparse ({param.grad.layout}), and Muon "
                        "takes dense ones: build the module with sparse=False"
                    )
                other = "exp_avg" if self._is_matrix(param, group) else "momentum_buffer"
                if param.grad is not None and other in self.state.get(param, ()):
                    raise InvalidArgument(
                        f"{self._place(number, index)} has {other} of {self.state[param]['step']} steps, which "
                        f"matrices={group['matrices']!r} of group {number} has no use for: matrices= may not change "
                        "while an optimizer steps; make a new one"
                    )
        self._pace.step_begins()
        super().step()
        # Not where steps return before they are taken, nor of steps that overlap="forward" takes piece by piece.
        if self._batched and all(param.is_cpu for group in self.param_groups for param in group["params"][:1]):
            self._pace.step_has_ended(self._products)
        return loss

    def _step_group(self, params, group):
        matrices, others = [], []
        for param in params:
            self.state[param]["step"] = self.state[param].get("step", 0) + 1
            (matrices if self._is_matrix(param, group) else others).append(param)
        if matrices:
            self._step_matrices(matrices, group)
        if others:
            self._step_others(others, group)

    def _step_matrices(self, params, group):
        grads, momentum = _gradients(params), group["momentum"]
        buffers = self._moments(params, "momentum_buffer")
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, grads)
        directions = torch._foreach_add(grads, buffers, alpha=momentum)

        are_stacks = group["matrices"] == "stacked"

        def orthogonalized(tensors):
            matrices = [matrix for tensor in tensors for matrix in _matrices_of(tensor, are_stacks)]
            updates = iter(_orthogonalized(matrices, self._batched, _PRODUCTS[self._products]))
            return [_together([next(updates) for _ in _matrices_of(tensor, are_stacks)], tensor) for tensor in tensors]

        _descend(params, of_whole_matrices(params, directions, orthogonalized, are_stacks), group)

    def _step_others(self, params, group):
        grads, (beta1, beta2) = _gradients(params), group["betas"]
        steps = [self.state[param]["step"] for param in params]
        means = self._moments(params, "exp_avg")
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, grads, alpha=1 - beta1)
        squares = self._moments(params, "exp_avg_sq")
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        scales = torch._foreach_div(squares, [1 - beta2**step for step in steps])
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, group["eps"])
        updates = torch._foreach_div(means, scales)
        torch._foreach_div_(updates, [1 - beta1**step for step in steps])
        _descend(params, updates, group)

    def _moments(self, params, name):
        states = [self.state[param] for param in params]
        for param, state in zip(params, states):
            if name not in state:
                state[name] = torch.zeros_like(param, dtype=_dtype_of(param))
        return [local_of(state[name]) for state in states]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        # Which has rounded the moments to their parameters' types.
        groups = (state_dict["param_groups"], self.param_groups)
        keys, params = (itertools.chain.from_iterable(group["params"] for group in of) for of in groups)
        for key, param in zip(keys, params):
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, torch.Tensor):
                    self.state[param][name] = value.to(param.device, _dtype_of(param), copy=True)

    def __getstate__(self):
        return {**super().__getstate__(), "_products": self._products, "_batched": self._batched, "_pace": _Pace()}


class _Pace:
    """Compares the time in steps with that between them, over _PACE_STEPS of them, and warns once."""

    def __init__(self):
        self._began = self._ended = None
        self._within, self._between = [], []

    def step_begins(self):
        if len(self._within) == _PACE_STEPS:
            return
        self._began = _clock()
        if self._ended is not None:
            self._between.append(self._began - self._ended)

    def step_has_ended(self, products):
        if len(self._within) == _PACE_STEPS:
            return
        self._ended = _clock()
        self._within.append(self._ended - self._began)
        if len(self._within) == _PACE_STEPS:
            # The first of each warms up; what lies between may hold an evaluation, or a meeting.
            within, between = (statistics.median(times[1:]) for times in (self._within, self._between))
            if within > max(between, _WORTH_A_WORD):
                faster = "" if products == "bfloat16" else "products='bfloat16' where the processor has it, "
                warnings.warn(
                    f"Muon's steps take {1000 * within:.0f} ms each, longer than all else between them, "
                    f"{1000 * between:.0f} ms: its products cost 3 to 5 x width / tokens of a worker's batch of the time "
                    f"of forward and backward. Take larger batches, {faster}more threads, or AdamW (docs/recipes.md)",
                    RuntimeWarning,
                    stacklevel=5,
                )


def muon_groups(model: torch.nn.Module, others: Iterable[torch.Tensor] | None = None) -> list[dict[str, Any]]:
    """Parameter groups for Muon: matrices, and those that AdamW steps whatever their shape: `others`, or unless given
    the parameters of every Embedding and EmbeddingBag and of the last Linear of the model. Frozen
    parameters are in neither."""
    if others is None:
        others = [
            param
            for module in model.modules()
            if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag))
            for param in module.parameters(recurse=False)
        ]
        linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        others += linears[-1].parameters() if linears else []
    apart = {id(param) for param in others}
    params = [param for param in model.parameters() if param.requires_grad]
    groups = [
        {"params": [param for param in params if id(param) not in apart]},
        {"params": [param for param in params if id(param) in apart], "matrices": False},
    ]
    return [group for group in groups if group["params"]]


def _dtype_of(param):
    """What its moments and steps are computed in."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def _gradients(params):
    """Of DTensors what this process holds, as everywhere here but where matrices are orthogonalised."""
    return [local_of(divided_like(param.grad, param)).to(_dtype_of(param)) for param in params]


def _descend(params, updates, group):
    """x <- (1 - lr wd) x - lr update, rounded once to x's type."""
    lr = float(group["lr"])
    held = [local_of(param) for param in params]
    values = [part.to(_dtype_of(part)) for part in held]
    torch._foreach_mul_(values, 1 - lr * group["weight_decay"])
    torch._foreach_add_(values, updates, alpha=-lr)
    for part, value in zip(held, values):
        if value is not part:
            part.copy_(value)


def _matrices_of(tensor, is_stack):
    """A tensor's matrices: itself, or those of a stack, which are its last two dimensions."""
    return tensor.reshape(-1, *tensor.shape[-2:]).unbind(0) if is_stack else (tensor,)


def _together(matrices, like):
    """What _matrices_of() has divided, again one tensor of the shape of `like`."""
    if len(matrices) == 1:
        return matrices[0].reshape(like.shape)
    return torch.stack(matrices).view(like.shape) if matrices else torch.zeros_like(like)


def _is_tall(tensor):
    return tensor.shape[0] > tensor.shape[1:].numel()


def _orthogonalized(directions, batched, products=None):
    """0.2 sqrt(max(rows, columns)) X of each u; products: the type of those of large matrices, unless float64."""
    alike = {}
    for index, direction in enumerate(directions):
        matrix = direction.flatten(1)
        if _is_tall(direction):
            matrix = matrix.mT
        together = batched and matrix.numel() <= _BATCHED_NUMEL
        key = (matrix.shape, matrix.dtype, matrix.device) if together else index
        alike.setdefault(key, []).append((index, matrix))
    updates = [None] * len(directions)
    for entries in alike.values():
        # Stacked they lie row by row, however the gradients do, for which the products' bits may differ.
        stack = torch.stack([matrix for _, matrix in entries])
        is_large = stack[0].numel() > _BATCHED_NUMEL and stack.dtype == torch.float32
        results = _newton_schulz(stack, products if is_large and products is not None else stack.dtype)
        results *= _STEP_LENGTH * math.sqrt(results.shape[-1])
        for (index, _), result in zip(entries, results):
            like = directions[index]
            updates[index] = (result.mT if _is_tall(like) else result).reshape(like.shape)
    return updates


def _newton_schulz(x, products):
    """Of wide matrices, x[number, rows, columns], with products of that type."""
    kept = x.dtype
    a, b, c = _COEFFICIENTS
    with torch.autocast(x.device.type, enabled=False):  # Which would round the products.
        x = x / (torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True) + _NORM_EPS)
        x = x.to(products)
        for _ in range(_ITERATIONS):
            gram = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(kept)
