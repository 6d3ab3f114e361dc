"""Parameters' names: those that the program gave, or made ones."""

import torch
from torch.nn.parameter import is_lazy

from ..errors import InvalidArgument
from .foreign_words import described
from .shards import local_of

_GIVE = "give model.named_parameters(), which is not model.parameters(), or the model itself"

USED_UP = (
    "what model.named_parameters() returns can be read once, and is empty for the next one that reads it; call "
    "model.named_parameters() anew for each, or give the model itself"
)


def named_entries(named_parameters):
    """(name, parameter) of each, of a model, of model.named_parameters() or of a dict."""
    if named_parameters is None:
        return
    if isinstance(named_parameters, torch.nn.Module):
        named_parameters = named_parameters.named_parameters()
    elif hasattr(named_parameters, "items"):
        named_parameters = named_parameters.items()
    if isinstance(named_parameters, torch.Tensor) or not hasattr(named_parameters, "__iter__"):
        raise InvalidArgument(f"named_parameters is {described(named_parameters)}: {_GIVE}")
    for entry in named_parameters:
        if isinstance(entry, (tuple, list)) and len(entry) == 2:
            name, param = entry
            if isinstance(name, str) and isinstance(param, torch.Tensor):
                yield name, param
                continue
        raise InvalidArgument(
            f"named_parameters are pairs of a name and a parameter, and among them is {described(entry)}"
            f"{' without a name' if isinstance(entry, torch.Tensor) else ''}: {_GIVE}"
        )


class WithNames:
    """Parameters as an optimizer takes them, and (name, parameter) pairs of them apart."""

    def __init__(self, params, named):
        self.params = params
        self.named = named


def split_names(params):
    """(parameters or groups as torch.optim takes them, (name, parameter) pairs or None) of a model, of pairs, of groups
    with pairs, or of what has no names."""
    if isinstance(params, WithNames):
        return params.params, params.named
    if isinstance(params, torch.nn.Module):
        params = params.named_parameters()
    if isinstance(params, (torch.Tensor, dict)) or not hasattr(params, "__iter__"):
        return params, None  # Of which torch says what is wrong.
    entries = list(params)
    if not entries or not isinstance(entries[0], dict):
        params, named = _split(entries)
        return params, named or None
    groups, all_named = [], []
    for group in entries:
        params = group["params"]
        if isinstance(params, torch.nn.Module):
            params = params.named_parameters()
        if not isinstance(params, (torch.Tensor, set)):
            params, named = _split(list(params))
            all_named += named
        groups.append({**group, "params": params})
    return groups, all_named or None


def _split(entries):
    """(the parameters, the pairs) of entries that are all pairs, or none."""
    if not any(isinstance(entry, tuple) for entry in entries):
        return entries, []
    named = list(named_entries(entries))
    return [param for _, param in named], named


class Names:
    """Parameters' names and forward order."""

    def __init__(self, named_parameters):
        self._given = named_parameters is not None
        self._names = {}  # id of a parameter -> (name, parameter), in forward order
        self.learn(named_parameters)

    def learn(self, named_parameters):
        taken = {name for name, _ in self._names.values()}
        for name, param in named_entries(named_parameters):
            if id(param) in self._names:
                continue  # Tied: it travels once, under its first name.
            if name in taken:
                raise InvalidArgument(f"two parameters are named {name!r}", tensor=name)
            taken.add(name)
            self._names[id(param)] = (name, param)

    def in_forward_order(self, groups, first_group=0):
        """(name, parameter) of all parameters in an optimizer's groups that have elements: of the others there is
        nothing to exchange."""
        wanted = set()
        for g, group in enumerate(groups, first_group):
            for i, param in enumerate(group["params"]):
                wanted.add(id(param))
                if id(param) not in self._names:
                    self.learn([self._make_name(g, i, param)])
        return with_elements(entry for key, entry in self._names.items() if key in wanted)

    def besides(self, ids):
        """(name, parameter) of those with other ids than these."""
        return [entry for key, entry in self._names.items() if key not in ids]

    def missing_of(self, named):
        """Those of (name, parameter) pairs that have no name here."""
        return [(name, param) for name, param in named if id(param) not in self._names]

    def _make_name(self, group, index, param):
        if self._given:
            if not self._names:
                raise InvalidArgument(f"named_parameters is empty: {USED_UP}")
            raise InvalidArgument(
                f"parameter {index} of group {group} (shape {list(param.shape)}) is not among "
                "named_parameters; pass model.named_parameters()"
            )
        return f"group{group}.param{index}", param


def with_elements(named):
    """Those of (name, parameter) pairs. InvalidArgument of a lazy module's, which is not known to have any."""
    kept = []
    for name, param in named:
        if is_lazy(param):
            raise InvalidArgument(
                f"{name!r} has no shape yet, as its lazy module has not been called; call the model once, on a batch "
                "like those it will train on, before its optimizer or hook is made",
                tensor=name,
            )
        if local_of(param).numel():
            kept.append((name, param))
    return kept
