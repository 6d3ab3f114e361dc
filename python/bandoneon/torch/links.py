"""Links: the options of every constructor that exchanges tensors, said once."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from dataclasses import dataclass, fields, replace
from typing import Any, Callable, TypeVar

from ..errors import InvalidArgument
from .hints import Overrides, Weighting
from .link_options import LinkOptions, LinkTable
from .loss_scale import AUTO
from .names import WithNames


@dataclass(frozen=True)
class Links:
    """The options of the links between workers and servers, the same in all workers. Every constructor that
    exchanges tensors takes them as links=; where push and pull are all of them, push= and pull= do instead:

        links = bdn.Links(push="ef(onebit)", pull="ef(onebit)", momentum=0.9, warmup=50)
        optimizer = bdn.DistributedOptimizer(sgd, model, links=links)
        optimizer = bdn.DistributedOptimizer(sgd, model, push="int8", pull="int8")

    For a second model, dataclasses.replace(links, prefix="critic/"). A constructor refuses a field that would do
    nothing there, and its own text says where its defaults are others.

    push, pull: codec specs; else those of init(), BANDONEON_PUSH and BANDONEON_PULL, or "none", unless the
        constructor has others. A spec may change with the step: "none for 100; ef(topk(ratio=0.25)) for 400;
        ef(topk(ratio=0.01))".
    momentum: Nesterov's, applied before error feedback: instead of SGD(momentum=, nesterov=True). The optimizer's own
        must be 0 then.
    warmup: the first steps of every parameter go uncompressed.
    overrides: other push, pull, momentum or warmup for parameters by name, the first pattern that fits:
        {"*.bias": dict(push="none", pull="none"), "emb*": dict(push="ef(topk(ratio=0.01))")}.
    prefix: of the tensors' names, to tell two models of one job apart.
    timeout: seconds to wait for one exchange before DeadlineExceeded says who is missing.
    check: refuse parameters that are not the same in all workers, for they would stay different.
    scaler: the GradScaler, if several are alive; None if gradients are not scaled.
    weight: how many samples, or tokens, this worker's part is the mean of: a number, or a function that is asked once
        an exchange, before its first push. The mean is then one over all samples: sum of weight x part / sum of
        weights. 0 adds nothing, whatever the part is. None: every worker counts as one. Residuals and momentum are
        kept in units of weight x gradient.
    average: "after" divides the sum of the gradients. "before" divides each worker's by the number of workers before
        they are added up, as DDP does, so that the sum of large ones does not overflow; where that number is no power
        of two it rounds once more. Weights, residuals and momentum are as many times smaller.
    sparse: what becomes of sparse gradients, as of nn.Embedding(sparse=True). "refuse": an error. "dense": they are
        exchanged as dense ones. "rows": row by row, each with its number, by the codecs of docs/rows.md; `grad` is a coalesced
        sparse tensor then. For that give the constructor the model. "sketch" is for dense gradients of mostly zeros, as of
        pruned models: they go as sketches, from which all is found again, once 20 steps have shown that at most a tenth of a
        gradient is not zero in any worker.
    sparse_as_dense: the old name of sparse="dense".
    local_group: a torch.distributed group of this host's processes, which add up their tensors themselves and exchange
        a slice of the sums each, 1 / P of the bytes (docs/local_group.md). Every process is a worker of the job, a group's
        ranks follow one another, all groups are of one size, and each is of one optimizer alone.
    """

    push: str | None = None
    pull: str | None = None
    momentum: float = 0.0
    warmup: int = 0
    overrides: Overrides | None = None
    prefix: str = ""
    timeout: float | None = None
    check: bool = True
    scaler: Any = AUTO
    weight: Weighting | None = None
    average: str = "after"
    sparse_as_dense: bool = False
    sparse: str = "refuse"
    local_group: Any = None

    @property
    def sparse_way(self) -> str:
        """What `sparse` and its old name say together."""
        if self.sparse not in ("refuse", "dense", "rows", "sketch"):
            raise InvalidArgument(f"sparse={self.sparse!r} is none of 'refuse', 'dense', 'rows' and 'sketch'")
        if self.sparse_as_dense and self.sparse == "rows":
            raise InvalidArgument("sparse='rows' and sparse_as_dense=True contradict each other: leave the latter out")
        return "dense" if self.sparse_as_dense and self.sparse == "refuse" else self.sparse

    def __deepcopy__(self, memo):
        """Shares the scaler and the weight with the original: a copy of the program's GradScaler scales nothing."""
        return replace(self, overrides=copy.deepcopy(self.overrides, memo))

    def __getstate__(self):
        if self.scaler is not None and not isinstance(self.scaler, str):
            raise InvalidArgument(
                "Links with a scaler= cannot be pickled, for a copy of the GradScaler scales nothing: pickle them "
                "without, and give dataclasses.replace(links, scaler=scaler) to the constructor"
            )
        if self.local_group is not None:
            raise InvalidArgument(
                "Links with a local_group= cannot be pickled, for a process group is of its process: pickle them without, "
                "and give dataclasses.replace(links, local_group=group) to the constructor"
            )
        return dict(vars(self))


def link_table(links: Links, push: str | None = None, pull: str | None = None) -> LinkTable:
    """Each parameter's links, where `push` and `pull` are the constructor's own defaults."""
    options = LinkOptions.of(links.push or push, links.pull or pull, links.momentum, links.warmup)
    return LinkTable(options, links.overrides)


_FIELDS = {field.name: field.default for field in fields(Links)}
# Fields that a constructor also takes as arguments, without a warning: they never were arguments before there was Links.
_SHORT = ("sparse", "local_group")
_Constructor = TypeVar("_Constructor", bound=Callable[..., Any])


def takes_links(*used: str) -> Callable[[_Constructor], _Constructor]:
    """Decorates a constructor that takes `links` and uses these fields of it, besides push and pull if it has such
    arguments. It is called with one Links, which holds push= and pull=, too, and sets no other field.

    Until 1.0 a caller may give each field as an argument of its own, as before there was Links, and the names of
    `params` as `named_parameters`."""

    def decorate(constructor):
        own = inspect.signature(constructor).parameters
        name = constructor.__qualname__.split(".")[0]
        short = [word for word in ("push", "pull") if word in own] + [w for w in _SHORT if w in used and w not in own]
        old_fields = [word for word in used if word not in own and word not in _SHORT]
        old_words = [word for word in used if word not in own]
        old_words += ["named_parameters"] * ("named_parameters" not in own and "params" in own)
        used_fields = list(dict.fromkeys(short + list(used)))  # In the order in which people are told of them.

        @functools.wraps(constructor)
        def with_links(*args, **kwargs):
            given = kwargs.pop("links", None)
            words = {word: kwargs.pop(word) for word in short + old_fields if word in kwargs}
            words = {word: value for word, value in words.items() if word in old_fields or value is not None}
            old = [word for word in words if word in old_fields]
            if given is None:
                given = Links(**words)
            elif words:
                raise InvalidArgument(
                    f"{name}() was given links= and {_listed(words)} beside it: say it in one place, "
                    f"links=bandoneon.torch.Links({_listed(words)} ...)"
                )
            _check(given, name, used_fields, own)
            if old:
                _warn(name, f"{_listed(old)}: give links=bandoneon.torch.Links({_listed(words)}) in its place")
            if "named_parameters" in old_words and "named_parameters" in kwargs:
                _warn(name, "named_parameters=: give model.named_parameters(), or the model, for its parameters")
                args, kwargs = _with_names(args, kwargs)
            return constructor(*args, links=given, **kwargs)

        with_links.old_words = old_words
        return with_links

    return decorate


def _check(links, name, used, own):
    """InvalidArgument if `links` are not Links, or set a field that the constructor does not use."""
    if not isinstance(links, Links):
        said = "push=" if isinstance(links, str) else "**" if isinstance(links, dict) else ""
        raise InvalidArgument(
            f"links={links!r} of {name}() is not made by Links: bandoneon.torch.Links({said}{links!r}), or "
            "push= and pull= without links="
        )
    for field, default in _FIELDS.items():
        value = getattr(links, field)
        if field in used or value is default or value == default:
            continue
        instead = f"{name} has {field}= of its own" if field in own else f"{name} takes {', '.join(used)} of them"
        raise InvalidArgument(f"Links({field}={value!r}) would do nothing in {name}: leave it out; {instead}")


def _warn(name, what):
    # The frames in between are with_links() and the check of foreign_words.
    warnings.warn(f"from release 1.0 on {name}() takes no {what}", DeprecationWarning, stacklevel=4)


def _with_names(args, kwargs):
    """The arguments with `named_parameters` inside `params`, which is first behind self."""
    names = kwargs.pop("named_parameters")
    if names is None or (len(args) < 2 and "params" not in kwargs):
        return args, kwargs  # Without parameters, which the constructor says.
    if "params" in kwargs:
        return args, {**kwargs, "params": WithNames(kwargs["params"], names)}
    itself, params, *others = args
    return (itself, WithNames(params, names), *others), kwargs


def _listed(words):
    return ", ".join(f"{word}=" for word in words)
