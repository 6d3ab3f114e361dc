"""KFAC: gradients times the inverse of the curvature of each layer, as a product of two small matrices."""

from __future__ import annotations

import dataclasses
import threading
import warnings
import weakref
from typing import Any

import torch

from ... import _native
from ...calls import Declaration, Push
from ...errors import InvalidArgument, Unimplemented
from ...session import default_worker
from ...worker import Worker
from .. import backward_pass
from ..broadcast import allgather_object
from ..comm_state import fitting_state, saved_by
from ..exchange_guard import ExchangeGuard
from ..handover import Handover
from ..hints import Closure, SavedState
from ..hyperparameters import check_positive
from ..links import Links, takes_links
from ..optimizer import DistributedOptimizer
from ..parameters import learning_rates
from ..round_notices import of_exchange
from ..shards import is_shard
from ..tensors import DTYPES, host_zeros
from ..weight import Weight
from ..wrapped import WrappedOptimizer, evaluate

_DECAY = 0.95  # of the running means
_LARGEST = 8192  # rows of a factor: 128 MiB of a triangle, and minutes for its inverse
_EVERYWHERE = 64  # Up to so many rows every worker inverts by itself, which takes less than to be sent the result.
_FUSED_BYTES = 64 << 10  # The two factors of a layer travel as one tensor up to here.
_INT8_DAMPING = 0.1
_NO_TASK = -1  # outside of a backward pass
_CODECS = ("none", "fp16", "int8")


class KFAC(WrappedOptimizer):
    """Kronecker-factored curvature (arXiv 1503.05671, as distributed by 2107.06533) for Linear and Conv2d, in front of
    any optimizer. Collective: all workers construct the same and step together.

    For a layer with inputs a (1 appended for the bias) and the gradients g of each sample's own loss by its outputs:

        A <- 0.95 A + 0.05 mean a a'        G <- 0.95 G + 0.05 mean g g'        over the samples of all workers; at first I
        v = (G + damping)^-1 grad (A + damping)^-1
        grad <- v min(1, sqrt(clip / sum |v grad lr^2|))

    and the optimizer steps by that; parameters that are in no such layer, it steps by their gradients.

        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = bdn.algorithms.KFAC(model, sgd)
        optimizer.zero_grad()
        loss.backward()                             # Of a loss that is a mean over the batch.
        optimizer.step()

    model: whose layers these are. A layer that is called several times in a pass is one layer. `plain_layers` has the
        modules that are left out, by name, and a warning says them once: other kinds, weights that several modules
        share, factors of more than 8,192 rows.
    optimizer: any plain one, with the groups and rates that it has without this.
    factors: codec of the factors' triangles both ways: "none", "fp16", or "int8", which needs a damping of 0.1: below it
        its rounding is larger than what is damped.
    every: steps from one exchange of factors to the next. A leaves in the forward pass, G in the backward pass, both behind
        the gradients, and they are awaited in the next step.
    inverses: steps from one inversion to the next, a multiple of `every`. Each worker inverts a share of the factors
        beside its next steps, and all take the results `every` steps later; the first ones at once.
    damping, clip: of the formulas above.
    links: of the gradients, as of DistributedOptimizer. With weight= factors are means over all samples, too: the
        function is asked a second time in each step with factors, in its forward pass.

    A sample is an image, a row, or, in a Linear of inputs of three dimensions and more, each position: right where the
    loss is a mean over positions. One backward pass a step. Factors and inverses are float32, or float64 of float64 layers with
    factors="none".
    Factors that are not finite in some worker are left out by all, `skipped_factors`; so is a step with gradients that are
    not finite, `skipped_steps`. A GradScaler is refused; use bfloat16. Workers need the same machine's arithmetic.
    """

    @takes_links("push", "pull", "warmup", "overrides", "prefix", "timeout", "check", "weight")
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        factors: str = "fp16",
        every: int = 10,
        inverses: int = 100,
        damping: float = 1e-3,
        *,
        clip: float = 1e-3,
        links: Links = Links(),
        worker: Worker | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise InvalidArgument(f"KFAC takes the model first, KFAC(model, optimizer), and got a {type(model).__name__}")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(
                f"KFAC takes an optimizer of torch.optim behind the model, and got a {type(optimizer).__name__}"
            )
        _check_options(factors, every, inverses, damping, clip)
        stepped = [param for group in optimizer.param_groups for param in group["params"]]
        layers, plain = _layers_of(model, stepped, keeps_float64=factors == "none")
        if not layers:
            raise InvalidArgument(
                "KFAC takes Linear and Conv2d, and the model has none of those that the optimizer steps and KFAC can take; it has "
                f"{_listed(plain)}"
            )
        if any(is_shard(param) for param in stepped):
            raise Unimplemented(
                "KFAC takes whole matrices, and the optimizer steps DTensors, of which each rank holds a part: use "
                "DistributedOptimizer for a sharded model"
            )
        super().__init__(optimizer)
        self.plain_layers = plain
        worker = worker or default_worker()
        self._options = dict(factors=factors, every=every, inverses=inverses, damping=float(damping), clip=float(clip))
        _check_same(worker, self._options)
        self.factors, self.every, self.inverses = factors, every, inverses
        self.damping, self.clip = float(damping), float(clip)
        self.skipped_factors = self.skipped_steps = 0
        self._worker, self._timeout = worker, links.timeout
        self._distributed = DistributedOptimizer(
            optimizer, model, links=dataclasses.replace(links, scaler=None), worker=worker
        )
        parts = optimizer._bandoneon
        self._synchronizer, self._parameters = parts.synchronizer, parts.parameters
        self._layers = layers
        self._guard = ExchangeGuard(worker, parts.parameters.reference)
        self._declare(links.prefix, parts.parameters.reference)
        self._weights = Weight(links.weight)
        self._weight: float | None = None  # of this step's factors
        self._steps = 0
        self._inversion: _Inversion | None = None
        self._due: int | None = None  # the step at which its results are taken
        itself = weakref.ref(self)
        self._hooks = [
            layer.module.register_forward_hook(_forward_hook(itself, layer), with_kwargs=True) for layer in layers
        ]
        weakref.finalize(self, _remove, self._hooks).atexit = False
        worker.settle_before_leaving(self)
        if parts.recorder is not None:
            parts.recorder = None  # Its steps are parts of those of this optimizer.
            self._record(parts.parameters, lambda own: own._parameters.steps)
        if self.plain_layers and worker.rank == worker.first_rank():
            warnings.warn(
                f"KFAC takes Linear and Conv2d, and leaves {_listed(self.plain_layers)} to {type(optimizer).__name__} as they "
                "are; plain_layers has all",
                RuntimeWarning,
                stacklevel=4,
            )

    def _declare(self, prefix, owner):
        factors = [factor for layer in self._layers for factor in layer.factors]
        self._factors = factors
        keys = []
        for layer in self._layers:
            fits = 4 * sum(factor.elements for factor in layer.factors) <= _FUSED_BYTES
            for group in [layer.factors] if fits else [[factor] for factor in layer.factors]:
                keys.append(_Key(group))
        sent = [factor for factor in factors if factor.size > _EVERYWHERE]
        declarations = [
            *(
                Declaration(f"{prefix}KFAC/{key.name}", key.elements, DTYPES[key.dtype], self.factors, self.factors)
                for key in keys
            ),
            *(
                Declaration(f"{prefix}KFAC/inverse of {factor.name}", factor.elements, DTYPES[factor.dtype])
                for factor in sent
            ),
            Declaration(f"{prefix}KFAC/present", self._worker.size),
        ]
        numbers = self._worker.declare(declarations, owner=owner)
        for item, number in zip([*keys, *sent], numbers):
            item.tensor = number
        self._presence = numbers[-1]
        self._keys = keys
        self._key_of = {id(factor): key for key in keys for factor in key.factors}
        # Behind all gradients, whose priorities are 0 and below.
        self._priority = -1 - len(self._parameters.members)

    # ---- In the passes ----

    @property
    def _is_factor_step(self):
        return self._steps % self.every == 0

    @torch.no_grad()
    def _on_forward(self, layer, inputs, output):
        if not (self._is_factor_step and isinstance(output, torch.Tensor) and output.requires_grad):
            return
        if not layer.module.weight.requires_grad:
            return
        if backward_pass.current_task() != _NO_TASK:
            return  # It is computed once more, for its activations were not kept.
        rows = layer.input_rows(inputs.detach())
        samples = inputs.shape[0] if layer.is_conv else len(rows)
        layer.inputs.add(rows.T @ rows, len(rows))
        layer.calls += 1
        layer.open_calls += 1
        itself, step = weakref.ref(self), self._steps

        def arrived(grad):
            kfac = itself()
            if kfac is not None and kfac._steps == step:
                kfac._on_backward(layer, grad.detach(), samples)

        output.register_hook(arrived)
        # Until a layer was seen to be called once, nobody knows whether this is its last call.
        if layer.is_called_once and layer.calls == 1:
            self._push_if_whole(layer.inputs)

    @torch.no_grad()
    def _on_backward(self, layer, grad, samples):
        rows = layer.output_rows(grad)
        # A mean loss gives each sample a part of its own loss's gradient: n times that is g, and mean g g' is this.
        layer.outputs.add((rows.T @ rows).mul_(samples), 1)
        layer.open_calls -= 1
        if layer.is_called_once and layer.open_calls == 0:
            self._push_if_whole(layer.outputs)

    def _push_if_whole(self, factor):
        key = self._key_of[id(factor)]
        if not key.is_pushed and all(one.is_there for one in key.factors):
            self._push(key)

    def _push(self, key):
        """At most once a step; what is not there is said to be absent."""
        if key.ticket is not None:
            self._take_factors()
        if self._weight is None:
            self._weight = self._weights.now()
        key.is_pushed = True
        is_absent = not self._weight or not all(factor.is_there for factor in key.factors)
        parts = [host_zeros(f.elements, f.dtype) if is_absent else f.packed_of_step() for f in key.factors]
        key.memory = torch.cat(parts) if len(parts) > 1 else parts[0]
        key.ticket = self._start(key.tensor, key.memory, is_absent, self._weight)

    def _push_rest(self):
        for key in self._keys:
            if not key.is_pushed:
                self._push(key)
            key.is_pushed = False
        self._weight = None
        for layer in self._layers:
            layer.end_step()

    def _start(self, tensor, memory, is_absent, weight=1.0):
        # With a weight, what is absent would count as zeros.
        flags, weight = (_native.ABSENT, 0.0) if is_absent else (0, weight)
        push = Push(tensor, memory.data_ptr(), memory, flags, self._priority, weight)
        tickets, error = self._worker.push_all([push])
        if error is not None:
            raise of_exchange(error)
        return tickets[0]

    def _wait(self, tickets):
        """The results of all."""
        with self._guard.exchange():
            results, error = self._worker.wait_all(tickets, self._timeout)
            if error is not None:
                raise of_exchange(error)
        return results

    @torch.no_grad()
    def _take_factors(self):
        """Awaits factors that are on their way."""
        keys = [key for key in self._keys if key.ticket is not None]
        if not keys:
            return
        for key, result in zip(keys, self._wait([key.ticket for key in keys])):
            memory, key.memory, key.ticket = key.memory, None, None
            if result.nonfinite:
                self.skipped_factors += len(key.factors)
            elif not result.absent:
                for factor, values in zip(key.factors, memory.split([factor.elements for factor in key.factors])):
                    factor.take(values)

    # ---- Inverses ----

    def _begin_inverses(self):
        """Places the factors, and begins to invert this worker's share. All have the same factors."""
        known = [factor for factor in self._factors if factor.mean is not None]
        owners = _placed([factor.size for factor in known if factor.size > _EVERYWHERE], self._present())
        placed = zip([factor for factor in known if factor.size > _EVERYWHERE], owners)
        here = [factor for factor in known if factor.size <= _EVERYWHERE]
        mine, awaited = [], []
        for factor, owner in placed:
            if owner == self._worker.rank:
                mine.append(factor)
            else:
                memory = host_zeros(factor.elements, factor.dtype)
                awaited.append((factor, memory, self._start(factor.tensor, memory, is_absent=True)))
        self._inversion = _Inversion(self, here, mine, awaited)

    def _present(self):
        """The ranks that take part, the same list in all."""
        values = host_zeros(self._worker.size)
        values[self._worker.rank] = 1
        self._wait([self._start(self._presence, values, is_absent=False)])
        return values.nonzero().flatten().tolist()

    def _take_inverses(self):
        """Awaits them; they wait for their step."""
        inversion = self._inversion
        if inversion is None:
            return
        inversion.join()
        results = self._wait([ticket for _, _, ticket in inversion.sent])
        for (factor, memory, _), result in zip(inversion.sent, results):
            # Its owner was lost before it had sent it, which all are told alike.
            factor.next = _inverted(factor.mean, self.damping) if result.absent else memory
        for factor, values in inversion.here:
            factor.next = values
        self._inversion = None

    def _use_inverses(self):
        self._take_inverses()
        for factor in self._factors:
            factor.use_next()
        self._due = None

    def settle(self) -> None:
        """Awaits what is in flight: factors and inverses, which are taken into use at their step."""
        self._take_factors()
        self._take_inverses()

    # ---- The step ----

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """A step of the optimizer by the gradients times the inverses. Returns what `closure` returns. Collective."""
        loss = evaluate(closure)
        self._synchronizer.before_step()
        step = self._steps
        if self._is_factor_step:
            self._push_rest()
        else:
            self._take_factors()
        if step == self._due:
            self._use_inverses()
        has_inverses = any(factor.inverse is not None for factor in self._factors)
        if step % self.inverses == 0 or (self._is_factor_step and not has_inverses):
            self._take_factors()
            self._begin_inverses()
            self._due = step + self.every
            if not has_inverses:
                self._use_inverses()
        params = (param for group in self.param_groups for param in group["params"])
        grads = [param.grad for param in params if param.grad is not None and param.numel()]  # Of none there is no norm.
        if not grads or all(norm.isfinite() for norm in torch._foreach_norm(grads, float("inf"))):
            self._precondition()
            self._distributed.step()
        else:  # In all workers, for these are the means.
            self.skipped_steps += 1
            self._synchronizer.forget_pass()
            self._parameters.step_count.end_step()
        self._steps += 1
        return loss

    def _precondition(self):
        rates = learning_rates(self.param_groups)
        directions, total = [], 0.0
        for layer in self._layers:
            grad = layer.gradient()
            if grad is None or layer.inputs.inverse is None or layer.outputs.inverse is None:
                continue
            left, right = (f.inverse_like(grad) for f in (layer.outputs, layer.inputs))
            direction = left @ grad @ right
            total += (direction.double() * grad.double()).sum().item() * rates[id(layer.module.weight)] ** 2
            directions.append((layer, direction))
        scale = min(1.0, (self.clip / total) ** 0.5) if total > 0 else 1.0
        for layer, direction in directions:
            layer.set_gradient(direction.mul_(scale))

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's."""
        self._distributed.zero_grad(*args, **kwargs)

    # ---- Newcomers and checkpoints ----

    @property
    def is_together(self) -> bool:
        """Whether a newcomer may begin now."""
        return self._distributed.is_together

    def count_samples(self, samples: float) -> None:
        """This worker's part of the next step is the mean of so many: weight= of it."""
        self._weights.count_samples(samples)
        self._distributed.count_samples(samples)

    def handover(self) -> Handover:
        """What a newcomer takes over: factors and inverses, too."""
        given = self._distributed.handover()
        return Handover({**given.common, "KFAC": self._state(), "options": dict(self._options)}, given.lent)

    def take_over(self, given: Handover) -> None:
        """Goes on from another worker's handover()."""
        for name, value in given.common["options"].items():
            if value != self._options[name]:
                raise InvalidArgument(f"this worker has {name}={self._options[name]!r}, and the others {name}={value!r}")
        self._distributed.take_over(given)
        self._load(given.common["KFAC"])

    @property
    def _settings(self):
        return dict(algorithm="KFAC", factors=self.factors, every=self.every, inverses=self.inverses)

    def comm_state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside model and state_dict(): factors, inverses, and what the links of the gradients
        remember; of rank 0, what the servers owe, too."""
        self._synchronizer.settle()
        state = self._parameters.state_dict(self._timeout)
        return {**saved_by(self._worker, self._settings), "KFAC": self._state(), **state}

    def load_comm_state_dict(self, state: SavedState) -> None:
        """Takes up this rank's comm_state_dict(), or of the list of all ranks' what falls to this one, where there
        were more or fewer workers; the next step is the one after it. Collective: all workers load before any of
        them steps."""
        state = fitting_state(state, self._settings, self._worker)
        _check_state(state.get("KFAC"), self._factors)
        self.settle()
        self._parameters.load_state_dict(state, self._timeout)
        self._load(state["KFAC"])
        self.inner._bandoneon.resume_check.is_settled = True

    def resume_at(self, step: int | None = None) -> None:
        """For a checkpoint without comm_state_dict(): codec schedules and warm-ups go on after `step`, by default the
        most that rank 0's optimizer state counts; factors and inverses begin anew. Collective, before any worker steps."""
        self.settle()
        self._distributed.resume_at(step)
        self._steps, self._due = 0, None
        for factor in self._factors:
            factor.mean = factor.inverse = factor.next = None

    def _state(self):
        self.settle()
        counts = dict(steps=self._steps, due=self._due, factors=self.skipped_factors, skipped=self.skipped_steps)
        return {**counts, "tensors": {factor.name: factor.state() for factor in self._factors}}

    def _load(self, state):
        self._steps, self._due = state["steps"], state["due"]
        self.skipped_factors, self.skipped_steps = state["factors"], state["skipped"]
        for factor in self._factors:
            factor.load(state["tensors"][factor.name])

    def close(self) -> None:
        """Takes the hooks away and frees the names for another optimizer, which begins anew."""
        self.settle()
        _remove(self._hooks)
        self._distributed.close()


class _Factor:
    """A or G of one layer."""

    def __init__(self, name, size, dtype, is_input):
        self.name, self.size, self.dtype, self.is_input = name, size, dtype, is_input
        self.elements = size * (size + 1) // 2
        self.mean = None  # [size, size], running
        self.inverse = None  # [size, size], in use
        self.next = None  # the packed inverse that comes into use later
        self.tensor = None  # of its inverse, if that travels
        self._placed = None  # the inverse where, and as, the gradients are
        self.end_step()

    def end_step(self):
        self._sum, self._count = None, 0

    @property
    def is_there(self):
        return self._sum is not None

    def add(self, products, count):
        self._sum = products if self._sum is None else self._sum + products
        self._count += count

    def packed_of_step(self):
        """Of this worker's batch; G counts its calls as one."""
        divisor = self._count if self.is_input else 1
        return packed(self._sum / divisor).to("cpu", self.dtype)

    def take(self, values):
        """A batch's mean, into the running one."""
        mean = unpacked(values, self.size)
        if self.mean is None:
            # The first batches have fewer samples than directions: of one that none has shown, the identity's 1 stays.
            self.mean = torch.eye(self.size, dtype=self.dtype, device="cpu")
        self.mean.mul_(_DECAY).add_(mean, alpha=1 - _DECAY)

    def use_next(self):
        if self.next is not None:
            self.inverse, self.next, self._placed = unpacked(self.next, self.size), None, None

    def inverse_like(self, grad):
        placed = self._placed
        if placed is None or placed.device != grad.device or placed.dtype != grad.dtype:
            placed = self._placed = self.inverse.to(grad.device, grad.dtype)
        return placed

    def state(self):
        """Tensors for all, whether they are known or not, as torch.distributed.checkpoint reads into what is there."""
        given = [None if x is None else packed(x) for x in (self.mean, self.inverse)] + [self.next]
        known = [x is not None for x in given]
        values = [host_zeros(self.elements, self.dtype) if x is None else x.clone() for x in given]
        return {"known": known, **dict(zip(("mean", "inverse", "next"), values))}

    def load(self, state):
        values = [
            state[what].to("cpu", self.dtype, copy=True) if known else None
            for what, known in zip(("mean", "inverse", "next"), state["known"])
        ]
        self.mean, self.inverse = (None if x is None else unpacked(x, self.size) for x in values[:2])
        self.next, self._placed = values[2], None


class _Layer:
    """A Linear or Conv2d, with its factors."""

    def __init__(self, name, module, has_bias, keeps_float64):
        self.module, self.has_bias = module, has_bias
        self.is_conv = isinstance(module, torch.nn.Conv2d)
        is_double = keeps_float64 and module.weight.dtype == torch.float64
        dtype = torch.float64 if is_double else torch.float32
        self.inputs = _Factor(f"A of {name}", module.weight[0].numel() + has_bias, dtype, is_input=True)
        self.outputs = _Factor(f"G of {name}", module.weight.shape[0], dtype, is_input=False)
        self.factors = [self.inputs, self.outputs]
        self.is_called_once = False  # in the last step with factors
        self.calls = self.open_calls = 0

    def end_step(self):
        self.is_called_once = self.calls == 1
        self.calls = self.open_calls = 0
        for factor in self.factors:
            factor.end_step()

    def input_rows(self, inputs):
        """[samples and positions, size of A]"""
        module = self.module
        if self.is_conv:
            if inputs.dim() == 3:
                inputs = inputs.unsqueeze(0)
            padding = module.padding
            if isinstance(padding, str) or module.padding_mode != "zeros":
                mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
                inputs = torch.nn.functional.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)
                padding = 0
            patches = torch.nn.functional.unfold(inputs, module.kernel_size, module.dilation, padding, module.stride)
            inputs = patches.transpose(1, 2)
        rows = _wide(inputs.reshape(-1, inputs.shape[-1]))
        return torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if self.has_bias else rows

    def output_rows(self, grad):
        """[samples and positions, size of G]"""
        if self.is_conv:
            grad = grad.movedim(-3, -1)
        return _wide(grad.reshape(-1, grad.shape[-1]))

    def gradient(self):
        """[size of G, size of A], of weight and bias; None where the weight has none."""
        weight, bias = self.module.weight, self.module.bias
        if weight.grad is None:
            return None
        grad = _wide(weight.grad.reshape(weight.shape[0], -1))
        if not self.has_bias:
            return grad
        column = grad.new_zeros(len(grad)) if bias.grad is None else bias.grad.to(grad.dtype)
        return torch.cat([grad, column[:, None]], 1)

    def set_gradient(self, values):
        weight, bias = self.module.weight, self.module.bias
        if self.has_bias:
            if bias.grad is not None:
                bias.grad.copy_(values[:, -1])
            values = values[:, :-1]
        weight.grad.copy_(values.reshape(weight.shape))


class _Key:
    """One or two factors that travel as one tensor."""

    def __init__(self, factors):
        self.factors = factors
        self.name = " and ".join(factor.name for factor in factors)
        self.elements = sum(factor.elements for factor in factors)
        self.dtype = factors[0].dtype
        self.tensor = None
        self.ticket = self.memory = None  # while it is on its way
        self.is_pushed = False  # in this step


class _Inversion:
    """This worker's share of the inverses, which a thread of its own computes and pushes."""

    def __init__(self, kfac, here, mine, awaited):
        """here: factors that every worker inverts; mine: those of this worker; awaited: (factor, memory, ticket) of the
        others'."""
        self.here, self.sent = [], list(awaited)
        self._error = None
        means = {id(factor): factor.mean.clone() for factor in [*here, *mine]}  # Which the next steps change.
        start, damping, num_threads = kfac._start, kfac.damping, torch.get_num_threads()

        def run():
            try:
                # OpenMP has a number for each thread, and for a new one takes all cores, which is a hundred times as slow
                # where several workers share them.
                torch.set_num_threads(num_threads)
                with torch.no_grad():
                    for factor in mine:
                        memory = _inverted(means[id(factor)], damping)
                        self.sent.append((factor, memory, start(factor.tensor, memory, is_absent=False)))
                    for factor in here:
                        self.here.append((factor, _inverted(means[id(factor)], damping)))
            except BaseException as error:  # Raised where it is awaited.
                self._error = error

        self._thread = threading.Thread(target=run, name="KFAC's inverses", daemon=True)
        self._thread.start()

    def join(self):
        self._thread.join()
        if self._error is not None:
            raise self._error


def packed(matrix):
    """The upper triangle of a symmetric matrix as a vector: its upper right block, and what is left of the two blocks on
    the diagonal, one as a lower and one as an upper triangle, which fill a rectangle."""
    size = len(matrix)
    p = (size + 1) // 2
    q = size - p
    rectangle = matrix.new_zeros(p, q + 1)
    rectangle[:, :p] = matrix[:p, :p].tril()
    rectangle[:q, 1:] += matrix[p:, p:].triu()
    return torch.cat([matrix[:p, p:].reshape(-1), rectangle.reshape(-1)])


def unpacked(values, size):
    """The symmetric matrix of a packed() one."""
    p = (size + 1) // 2
    q = size - p
    corner, rectangle = values[: p * q].view(p, q), values[p * q :].view(p, q + 1)
    lower, upper = rectangle[:, :p].tril(), rectangle[:q, 1:].triu()
    matrix = values.new_empty(size, size)
    matrix[:p, :p] = lower + lower.tril(-1).T
    matrix[p:, p:] = upper + upper.triu(1).T
    matrix[:p, p:] = corner
    matrix[p:, :p] = corner.T
    return matrix


def _inverted(mean, damping):
    """(mean + damping)^-1, packed. What rounding of a codec has made negative counts as 0."""
    values, vectors = torch.linalg.eigh(mean.double())
    return packed((vectors / (values.clamp(min=0) + damping)) @ vectors.T).to(mean.dtype)


def _placed(sizes, ranks):
    """The rank for each, the largest first to the one with the least to do, by cubes of sizes; the same in all workers."""
    load = dict.fromkeys(ranks, 0)
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        owners[i] = min(load, key=lambda rank: (load[rank], rank))
        load[owners[i]] += sizes[i] ** 3
    return owners


def _wide(tensor):
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _forward_hook(itself, layer):
    def hook(module, args, kwargs, output):
        kfac = itself()
        # A copy of the model has copies of its hooks.
        if kfac is not None and module is layer.module:
            inputs = args[0] if args else kwargs.get("input")
            if isinstance(inputs, torch.Tensor):
                kfac._on_forward(layer, inputs, output)

    return hook


def _remove(hooks):
    while hooks:
        hooks.pop().remove()


def _layers_of(model, stepped, keeps_float64):
    """(the layers that are taken, names of the modules that are not), of those that have something that is stepped."""
    stepped = {id(param) for param in stepped}
    holders = {}
    for module in model.modules():
        for param in module.parameters(recurse=False):
            holders.setdefault(id(param), set()).add(id(module))
    layers, plain = [], []
    for name, module in model.named_modules():
        own = {key: param for key, param in module.named_parameters(recurse=False) if id(param) in stepped}
        if not own:
            continue
        reason = _why_not(module, own, holders)
        if reason is None:
            layers.append(_Layer(name or "the model", module, "bias" in own, keeps_float64))
        else:
            plain.append(f"{name or 'the model'} ({reason})")
    return layers, plain


def _why_not(module, own, holders):
    kind = type(module).__name__
    base = next((base for base in (torch.nn.Linear, torch.nn.Conv2d) if isinstance(module, base)), None)
    if base is None or type(module).forward is not base.forward:
        return kind
    if "weight" not in own or not own.keys() <= {"weight", "bias"}:
        return f"{kind} whose weight is computed, or not stepped"
    if any(len(holders[id(param)]) > 1 for param in own.values()):
        return f"{kind} that shares its weight with another module"
    if base is torch.nn.Conv2d and module.groups != 1:
        return f"{kind} of {module.groups} groups"
    size = max(module.weight.shape[0], module.weight[0].numel() + 1)
    return f"{kind} with a factor of {size} rows" if size > _LARGEST else None


def _listed(names, most=8):
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "no modules") + more


def _check_options(factors, every, inverses, damping, clip):
    if factors not in _CODECS:
        raise InvalidArgument(f"factors={factors!r} is none of {', '.join(map(repr, _CODECS))}")
    for name, steps in (("every", every), ("inverses", inverses)):
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise InvalidArgument(f"{name}={steps!r} is not a number of steps, 1 or more")
    if inverses % every:
        raise InvalidArgument(f"inverses={inverses} is no multiple of every={every}: inverses are of factors that have come")
    for name, value in (("damping", damping), ("clip", clip)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise InvalidArgument(f"{name}={value!r} is not a finite number above 0")
        check_positive(**{name: value})
    if factors == "int8" and damping < _INT8_DAMPING:
        raise InvalidArgument(
            f"factors='int8' with damping={damping}: its rounding, about a hundredth of a factor's largest element, makes the "
            f"factors indefinite, and the step another one, below a damping of {_INT8_DAMPING}; use 'fp16', or more damping"
        )


def _check_same(worker, options):
    if worker.is_candidate():  # take_over() compares them.
        return
    everyone = allgather_object(options, worker=worker)
    ranks = worker.present()
    for rank, other in zip(ranks, everyone):
        for name, value in other.items():
            if value != everyone[0][name]:
                raise InvalidArgument(
                    f"worker {rank} has {name}={value!r}, and worker {ranks[0]} {name}={everyone[0][name]!r}"
                )


def _check_state(state, factors):
    for factor in factors:
        entry = state["tensors"].get(factor.name) if isinstance(state, dict) and "tensors" in state else None
        if entry is None or any(entry[what].numel() != factor.elements for what in ("mean", "inverse", "next")):
            raise InvalidArgument(f"the state has no factor {factor.name!r} of {factor.size} rows; it is of another model")
