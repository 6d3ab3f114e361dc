"""Bandoneon for PyTorch.

    import bandoneon.torch as bdn

    bdn.init()
    bdn.broadcast_parameters(model, root=0)
    optimizer = bdn.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
        links=bdn.Links(push="ef(onebit(block=256))", pull="ef(onebit(block=256))", momentum=0.9, warmup=50))
    ...  # The training loop as it was: backward() returns with the workers' mean gradients.
    bdn.shutdown()

bdn.algorithms has optimizers for compressed links and the outer steps of LocalSteps. Every function that talks to the job takes `worker=`, for several workers in one process; without it
the one of init() is meant.
"""

from ..session import init, is_initialized, local_rank, local_size, rank, report, shutdown, size
from . import algorithms as algorithms  # An export, to type checkers, too.
from .broadcast import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .checkpoint import load, save
from .ddp import DDPState, ddp_hook
from .ddp_besides import keep_gradients_local
from .exchange import barrier, push_pull
from .foreign_words import answer_foreign_words, missing_name
from .links import Links
from .local_steps import LocalSteps
from .named_recipes import recipe
from .old_names import keep_moved_modules, moved_name
from .optimizer import DistributedOptimizer
from .server_optimizer import ServerOptimizer
from .training_state import TrainingState

__all__ = [
    "DDPState",
    "DistributedOptimizer",
    "Links",
    "LocalSteps",
    "ServerOptimizer",
    "TrainingState",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "init",
    "is_initialized",
    "keep_gradients_local",
    "load",
    "local_rank",
    "local_size",
    "push_pull",
    "rank",
    "recipe",
    "report",
    "save",
    "shutdown",
    "size",
]

# torch looks at a hook's own annotations, and calls it itself.
answer_foreign_words([name for name in __all__ if name != "ddp_hook"], globals())
keep_moved_modules(__name__)


def __getattr__(name):
    found = moved_name(__name__, name)
    if found is None:
        raise missing_name(__name__, name)
    return found
