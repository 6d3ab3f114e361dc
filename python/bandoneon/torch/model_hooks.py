"""What hooks of ours on modules have in common."""

import torch

# Whether torch.compile traces the code that asks; it takes this for a constant.
is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling


class ModelHook:
    """A hook that stays with its model: in a copy, or once it was pickled, it does nothing."""

    __slots__ = ()

    def __reduce_ex__(self, protocol):
        return IdleHook, ()


class IdleHook:
    def __call__(self, *_):
        return None
