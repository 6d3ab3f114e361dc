"""What to say where a call is another framework's: its arguments by name, and arguments in other places."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, Iterable

import torch

from ..errors import InvalidArgument

# What is said of an argument that is not ours: which call has its place here.
_PUSH_AND_PULL = 'push= and pull= choose codecs for the two ways: push="fp16", pull="fp16", or push="ef(onebit)"'
_MEANS = (
    "gradients and push_pull() are means over the workers; for the sum multiply the mean by bandoneon.torch.size()"
)
_SCALED = "there is no scaling of gradients here; multiply the loss"
_ALL_PARAMETERS = "what a backward pass does not reach is told to the other workers by itself: leave it out"
_GROUPS = "give worker=bandoneon.torch.sharded.new_group(ranks), of these ranks or of torch's group, to exchange among some workers"
_BUCKETS = "the settings min-compress-bytes, fusion-bytes and partition-bytes of the job say how tensors are cut: leave it out"
_DEVICES = "tensors are exchanged where they lie: move the model to its device, and leave it out"
_CLIP = "clip between backward() and step(), with torch.nn.utils.clip_grad_norm_"
_ENGINE = "there is no engine and no file for it: give a torch optimizer, and options as arguments"
_MIXED = "use torch.autocast and torch.amp.GradScaler, which DistributedOptimizer finds by itself"
_WORDS = {
    # Horovod and BytePS
    "compression": _PUSH_AND_PULL,
    "compressor": _PUSH_AND_PULL,
    "compression_params": _PUSH_AND_PULL,
    "op": _MEANS,
    "average": _MEANS,
    "reduction": _MEANS,
    "use_adasum": _MEANS,
    "gradient_predivide_factor": _SCALED,
    "prescale_factor": _SCALED,
    "postscale_factor": _SCALED,
    "root_rank": "it is called root",
    "process_set": _GROUPS,
    "num_groups": _BUCKETS,
    "groups": _BUCKETS,
    "gradient_accumulation": "backward_passes_per_step=n adds up n passes",
    "staleness": "every step waits for all workers' gradients; LocalSteps(tau=n) exchanges every n steps",
    "version": "every use of a name is a step of its own: leave it out",
    # DistributedDataParallel and torch.distributed
    "device_ids": _DEVICES,
    "output_device": _DEVICES,
    "find_unused_parameters": _ALL_PARAMETERS,
    "static_graph": _ALL_PARAMETERS,
    "delay_all_reduce_named_params": "leave the names out of named_parameters and push_pull() those tensors yourself",
    "gradient_as_bucket_view": "gradients are exchanged where they lie: leave it out",
    "bucket_cap_mb": _BUCKETS,
    "bucket_bytes_cap": _BUCKETS,
    "broadcast_buffers": "broadcast_parameters(model) sends buffers once, and bandoneon.torch.batch_norm.average_batch_norm(model) averages them",
    "init_sync": "broadcast_parameters(model) gives all workers the same weights; Links(check=False) leaves the check out",
    "process_group": _GROUPS,
    "group": _GROUPS,
    "mixed_precision": _MIXED,
    "async_op": "push_pull() returns at once; handle.wait() waits",
    "init_method": 'init(scheduler="host:port"), or the environment of bandoneon run or torchrun, says where the job is',
    "backend": "the job has one way to exchange, chosen by its setting transport: leave it out",
    "world_size": "the scheduler's --workers says how many there are: leave it out",
    # DeepSpeed, fairscale, local SGD
    "config": _ENGINE,
    "config_params": _ENGINE,
    "model_parameters": "give model.named_parameters(), or the model itself, as named_parameters",
    "optimizer_params": _ENGINE,
    "training_data": "give each worker its share, by torch's DistributedSampler with rank() and size()",
    "lr_scheduler": "make it of the optimizer that is returned: it is an instance of torch's class",
    "mpu": _GROUPS,
    "gradient_clipping": _CLIP,
    "max_grad_norm": _CLIP,
    "max_norm": _CLIP,
    "gradient_accumulation_steps": "it is called backward_passes_per_step, and gradients are sums over the passes",
    "accumulation_steps": "it is called backward_passes_per_step, and gradients are sums over the passes",
    "freeze_step": "it is called warmup, of the Links of OneBitAdam",
    "cuda_aware": _DEVICES,
    "comm_backend_name": "the job has one way to exchange, chosen by its setting transport: leave it out",
    "fp16": _MIXED,
    "bf16": _MIXED,
    "zero_optimization": "ServerOptimizer keeps weights and moments on the servers; a worker holds its whole model",
    "sync_every": "LocalSteps(tau=n) exchanges every n steps",
    "num_local_steps": "LocalSteps(tau=n) exchanges every n steps",
    "local_steps": "LocalSteps(tau=n) exchanges every n steps",
    "model_fragments": "LocalSteps(tau=bandoneon.torch.algorithms.Streaming(tau, fragments=4)) deals the model's modules out",
    "fragment_sync_delay": "LocalSteps(tau=bandoneon.torch.algorithms.Streaming(tau, fragments=4, delay=1)) is a delay of 1",
    "fragment_update_alpha": "LocalSteps(tau=bandoneon.torch.algorithms.Streaming(tau, delay=1, merge=0.5)) is an alpha of 0.5",
    "should_quantize": _PUSH_AND_PULL,
    "average_period": "LocalSteps(tau=n, outer=Average()) averages every n steps",
}


# What other frameworks' modules have.
_CALLS = {
    "allreduce": 'push_pull(tensor, "name").wait() replaces a tensor by the mean over all workers',
    "allreduce_": 'push_pull(tensor, "name").wait() replaces a tensor by the mean over all workers',
    "all_reduce": 'push_pull(tensor, "name").wait() replaces a tensor by the mean over all workers',
    "allreduce_async": 'push_pull(tensor, "name") returns a handle at once',
    "allreduce_async_": 'push_pull(tensor, "name") returns a handle at once',
    "push_pull_async": 'push_pull(tensor, "name") returns a handle at once',
    "poll": "handle.is_done() says it, of what push_pull() returned",
    "broadcast": "broadcast_parameters() sends tensors by name, broadcast_object() anything",
    "broadcast_": "broadcast_parameters() sends tensors by name, broadcast_object() anything",
    "allgather": "allgather_object() collects anything; torch.distributed may run beside",
    "all_gather": "allgather_object() collects anything; torch.distributed may run beside",
    "alltoall": "there is none; torch.distributed may run beside",
    "reducescatter": "there is none; torch.distributed may run beside",
    "join": "DistributedOptimizer has it: with optimizer.join():",
    "Compression": _PUSH_AND_PULL,
    "Sum": _MEANS,
    "Adasum": _MEANS,
    "SyncBatchNorm": "bandoneon.torch.batch_norm.average_batch_norm(model) averages running statistics",
    "elastic": "there is none: start again from a checkpoint, by save() and load()",
    "DistributedDataParallel": "torch's, with ddp_hook; or DistributedOptimizer without it",
    "CrossBarrier": 'DistributedOptimizer(optimizer, model, overlap="forward")',
    "DistributedGradientTape": "that is TensorFlow's; DistributedOptimizer is for torch",
    "init_process_group": "init() joins the job",
    "destroy_process_group": "shutdown() leaves the job",
    "get_rank": "it is called rank()",
    "get_world_size": "it is called size()",
    "initialize": "init() joins the job, and DistributedOptimizer is put around torch's optimizer",
    "save_checkpoint": "it is called save()",
    "load_checkpoint": "it is called load()",
}


def missing_name(module, name):
    """The AttributeError of a module that has no such name."""
    said = _CALLS.get(name)
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f": {said}" if said else ""))


def answer_foreign_words(names: Iterable[str], module: dict[str, Any]) -> None:
    """Has what users call of a module answer an argument by a name that the call does not have with what has its place
    here: a TypeError, as ever. `module` is its globals."""
    for name in names:
        thing = module[name]
        if inspect.isclass(thing):
            if "__init__" in vars(thing):
                thing.__init__ = _answering(thing.__init__, name)
        elif inspect.isfunction(thing):
            module[name] = _answering(thing, name)


def _answering(function, name):
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return function
    known = [p for p in parameters if p != "self"]
    old = getattr(function, "old_words", ())  # Of before there was Links, which takes_links() takes.
    by_place = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())

    @functools.wraps(function)
    def checked(*args, **kwargs):
        for word in kwargs:
            if word not in parameters and word not in old:
                raise TypeError(_refusal(name, word, known, old))
        placed = by_place[: len(args)]
        twice = [word for word in placed if word in kwargs]
        if twice or (len(args) > len(by_place) and not takes_more):
            given = args[by_place.index(twice[0])] if twice else args[len(by_place)]
            places = ", ".join(word for word in by_place if word != "self") or "nothing"
            raise TypeError(
                f"{name}() takes {places} by place and all else by name, and got {described(given)} besides"
                + (f" where {twice[0]} is, which is also given by name" if twice else "")
            )
        return function(*args, **kwargs)

    return checked


def _refusal(name, word, known, old):
    text = f"{name}() has no argument {word!r}"
    said = _WORDS.get(word)
    if said is not None and not _is_own(said, known):
        return f"{text}: {said}. docs/coming_from.md has what other frameworks' calls are here"
    near = difflib.get_close_matches(word, [*known, *old], 1)
    if said is None and near:
        meant = f"links=Links({near[0]}=)" if near[0] in old and near[0] != "named_parameters" else repr(near[0])
        return f"{text}; did you mean {meant}?"
    if said is not None:
        return f"{text}: {said}"
    return f"{text}; it has {', '.join(known)}"


def _is_own(said, known):
    """Whether it is of another name for an argument that the call has."""
    return any(said.startswith(f"it is called {name}") for name in known)


def check_optimizer(name, optimizer, named_parameters=None):
    """Refuses what is no torch optimizer where one is to be, and says in which order they are given."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return
    text = f"{name} takes the optimizer first, and got {described(optimizer)}"
    if isinstance(named_parameters, torch.optim.Optimizer):
        raise InvalidArgument(
            f"{text}, with the optimizer behind it: {name}(optimizer, model.named_parameters()), in that order"
        )
    raise InvalidArgument(
        f"{text}: make one of torch.optim first, {name}(torch.optim.SGD(model.parameters(), lr=0.1), "
        "model.named_parameters())"
    )


def described(thing):
    if isinstance(thing, torch.nn.Module):
        return f"a model ({type(thing).__name__})"
    if isinstance(thing, torch.Tensor):
        return f"a tensor of shape {list(thing.shape)}"
    if inspect.isgenerator(thing):
        return "a generator, as model.parameters() is"
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"a {type(thing).__name__}"
