"""What hooks of ours on modules have in common."""

import torch



class _NotScriptable:
    __slots__ = ()

    @property
    def __name__(self):
        """What torch.jit.script() asks for first."""
        raise AttributeError(
            "torch.jit.script() takes no model with hooks, and bandoneon.torch has some on the models that train: script one "
            "that was made anew and has loaded the model's state_dict(), or close() the optimizer before, or use torch.export"
        )


class ModelHook(_NotScriptable):
    """A hook that stays with its model: in a copy, or once it was pickled, it does nothing."""

    __slots__ = ()

    def __reduce_ex__(self, protocol):
        return IdleHook, ()


class IdleHook(_NotScriptable):
    def __call__(self, *_):
        return None
