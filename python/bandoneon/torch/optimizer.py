"""DistributedOptimizer: any torch optimizer, stepping on the mean of all workers' gradients."""

import weakref

import torch

from ..errors import InvalidArgument, Unimplemented
from ..session import default_worker
from .loss_scale import AUTO, LossScale
from .parameters import LinkOptions, ParameterSet
from .synchronizer import Synchronizer


def DistributedOptimizer(
    optimizer,
    named_parameters=None,
    *,
    push=None,
    pull=None,
    momentum=0.0,
    warmup=0,
    scaler=AUTO,
    sparse_as_dense=False,
    overlap=True,
    prefix="",
    timeout=None,
    worker=None,
):
    """The optimizer, made distributed. Collective: all workers construct the same, in the same order.

    From now on loss.backward() returns with every gradient being the mean over all workers. The
    object returned is an instance of the optimizer's class and shares its state and groups, so
    schedulers, scalers and state_dict() work on either.

    named_parameters: model.named_parameters(), in forward order; also names what add_param_group()
        adds later.
    push, pull: codec specs; BANDONEON_PUSH and BANDONEON_PULL, else "none".
    momentum: Nesterov's, applied before error feedback: instead of SGD(momentum=, nesterov=True). The
        optimizer's own must be 0 then.
    warmup: the first steps of every parameter go uncompressed.
    scaler: the GradScaler, if several are alive; None if gradients are not scaled.
    sparse_as_dense: exchange sparse gradients densely instead of refusing them.
    overlap: False sends everything at the end of the backward pass.
    prefix: of the names, to tell two models of one job apart.
    timeout: seconds to wait for one gradient before DeadlineExceeded says who is missing.
    """
    if isinstance(optimizer, _Distributed):
        raise InvalidArgument("this optimizer is distributed already")
    worker = worker or default_worker()
    options = LinkOptions.of(push, pull, momentum, warmup)
    _check_momentum(optimizer.param_groups, options)
    parameters = ParameterSet(worker, options, prefix, sparse_as_dense)
    names = _Names(named_parameters)
    added = parameters.add(names.in_forward_order(optimizer.param_groups))
    scale = LossScale(scaler, options.remembers)
    synchronizer = Synchronizer(parameters, scale, overlap, timeout)
    synchronizer.add(added)

    cls = type(optimizer)
    distributed = object.__new__(type(f"Distributed{cls.__name__}", (_Distributed, cls), {}))
    distributed.__dict__ = optimizer.__dict__  # One set of groups, state and step hooks.
    optimizer._bandoneon = _Parts(parameters, synchronizer, scale, names)
    optimizer.register_step_pre_hook(_before_step)
    optimizer.register_step_post_hook(_after_step)
    return distributed


class _Distributed:
    """What DistributedOptimizer adds to the optimizer's class."""

    def no_sync(self):
        """A context in which backward() adds to the local gradients and exchanges nothing. The next
        backward() outside sends the sum."""
        return self._bandoneon.synchronizer.no_sync()

    def synchronize(self):
        """Ends a round that was not ended by a backward pass; usually there is none."""
        self._bandoneon.synchronizer.synchronize()

    def set_loss_scale(self, scale):
        """For gradients scaled otherwise than by a GradScaler: call it before backward()."""
        self._bandoneon.scale.set(scale)

    def add_param_group(self, param_group, named_parameters=None):
        """As the optimizer's. Collective: all workers add the same."""
        parts = self._bandoneon
        _check_momentum([{**self.defaults, **param_group}], parts.parameters.options)
        parts.names.learn(named_parameters)
        named = parts.names.in_forward_order([param_group], first_group=len(self.param_groups))
        added = parts.parameters.add(named)
        super().add_param_group(param_group)
        parts.synchronizer.add(added)

    def comm_state_dict(self):
        """This rank's residuals, momentum and steps: what a checkpoint needs beside state_dict()."""
        return self._bandoneon.parameters.state_dict()

    def load_comm_state_dict(self, state):
        """Takes up this rank's comm_state_dict(). Steps are the servers' and are not set."""
        self._bandoneon.parameters.load_state_dict(state)

    def close(self):
        """Takes the hooks away and frees the parameters' names for another optimizer."""
        self._bandoneon.synchronizer.close()
        self._bandoneon.parameters.release()


class _Parts:
    """What belongs to one distributed optimizer; takes its hooks with it when it goes."""

    def __init__(self, parameters, synchronizer, scale, names):
        self.parameters = parameters
        self.synchronizer = synchronizer
        self.scale = scale
        self.names = names
        weakref.finalize(self, synchronizer.close).atexit = False


class _Names:
    """Parameters' names and forward order."""

    def __init__(self, named_parameters):
        self._given = named_parameters is not None
        self._names = {}  # id of a parameter -> (name, parameter), in forward order
        self.learn(named_parameters)

    def learn(self, named_parameters):
        taken = {name for name, _ in self._names.values()}
        for name, param in named_parameters or ():
            if id(param) in self._names:
                continue  # Tied: it travels once, under its first name.
            if name in taken:
                raise InvalidArgument(f"two parameters are named {name!r}", tensor=name)
            taken.add(name)
            self._names[id(param)] = (name, param)

    def in_forward_order(self, groups, first_group=0):
        """(name, parameter) of all parameters in the groups."""
        wanted = set()
        for g, group in enumerate(groups, first_group):
            for i, param in enumerate(_params(group)):
                wanted.add(id(param))
                if id(param) not in self._names:
                    self.learn([self._make_name(g, i, param)])
        return [entry for key, entry in self._names.items() if key in wanted]

    def _make_name(self, group, index, param):
        if self._given:
            raise InvalidArgument(
                f"parameter {index} of group {group} (shape {list(param.shape)}) is not among "
                "named_parameters; pass model.named_parameters()"
            )
        return f"group{group}.param{index}", param


def _params(group):
    params = group["params"]
    if isinstance(params, torch.Tensor):
        return [params]
    return [p[1] if isinstance(p, tuple) else p for p in params]


def _check_momentum(groups, options):
    for g, group in enumerate(groups):
        own = group.get("momentum") or 0
        if options.momentum and own:
            raise InvalidArgument(
                f"momentum={options.momentum} of DistributedOptimizer goes before error feedback, and "
                f"momentum={own} of the optimizer's group {g} would be applied on top; set one to 0"
            )


def _before_step(optimizer, args, kwargs):
    rest = args[1:] if args and args[0] is optimizer else args
    if any(map(callable, rest)) or kwargs.get("closure") is not None:
        raise Unimplemented(
            "step(closure) calls backward() again from inside the step, as often as it likes, and every "
            "call would be a round with all workers; compute the gradients before and call step()"
        )
    optimizer._bandoneon.synchronizer.before_step()


def _after_step(optimizer, args, kwargs):
    optimizer._bandoneon.synchronizer.after_step()
