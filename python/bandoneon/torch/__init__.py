"""Bandoneon for PyTorch.

    import bandoneon.torch as bdn

    bdn.init()
    bdn.broadcast_parameters(model, root=0)
    optimizer = bdn.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
        push="ef(onebit(block=256))", pull="ef(onebit(block=256))", momentum=0.9, warmup=50)
    ...  # The training loop as it was: backward() returns with the workers' mean gradients.
    bdn.shutdown()

Every function that talks to the job takes `worker=`, for several workers in one process; without it
the one of init() is meant.
"""

from . import algorithms
from ..local_cluster import LocalCluster
from ..session import (
    default_worker,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    report,
    shutdown,
    size,
)
from .algorithms import (
    CSER,
    LANS,
    QSR,
    Average,
    DecayMomentumSGD,
    DeMo,
    EF21,
    FrozenAdamW,
    Lion,
    Muon,
    Nesterov,
    OneBitAdam,
    SignMomentum,
    SlowMo,
    muon_groups,
)
from .app_state import AppState
from .batch_norm import average_batch_norm
from .broadcast import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from .checkpoint import load, save
from .comm_state import CommState
from .ddp import DDPState, ddp_hook
from .ddp_besides import keep_gradients_local
from .exchange import Handle, barrier, empty, push_pull, synchronize
from .foreign_words import answer_foreign_words, missing_name
from .local_steps import LocalSteps
from .optimizer import DistributedOptimizer
from .named_recipes import Recipe, recipe, recipes
from .old_names import keep_moved_modules
from .server_optimizer import ServerOptimizer

__all__ = [
    "AppState",
    "Average",
    "CSER",
    "CommState",
    "DDPState",
    "DeMo",
    "DecayMomentumSGD",
    "DistributedOptimizer",
    "EF21",
    "FrozenAdamW",
    "Handle",
    "LANS",
    "Lion",
    "LocalCluster",
    "LocalSteps",
    "Muon",
    "Nesterov",
    "OneBitAdam",
    "QSR",
    "Recipe",
    "ServerOptimizer",
    "SignMomentum",
    "SlowMo",
    "allgather_object",
    "average_batch_norm",
    "barrier",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ddp_hook",
    "default_worker",
    "empty",
    "init",
    "is_initialized",
    "keep_gradients_local",
    "load",
    "local_rank",
    "local_size",
    "muon_groups",
    "push_pull",
    "rank",
    "recipe",
    "recipes",
    "report",
    "save",
    "shutdown",
    "size",
    "synchronize",
]

# torch looks at a hook's own annotations, and calls it itself.
answer_foreign_words(
    [name for name in __all__ if name != "ddp_hook" and name not in algorithms.__all__], globals()
)
keep_moved_modules(__name__)


def __getattr__(name):
    raise missing_name(__name__, name)
