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
from .cser import CSER
from .ddp import DDPState, ddp_hook
from .ddp_besides import keep_gradients_local
from .decay_momentum_sgd import DecayMomentumSGD
from .decoupled_momentum import DeMo
from .ef21 import EF21
from .exchange import Handle, barrier, empty, push_pull, synchronize
from .foreign_words import answer_foreign_words, missing_name
from .frozen_adam import FrozenAdamW
from .lans import LANS
from .lion import Lion
from .local_steps import QSR, Average, LocalSteps, Nesterov, SignMomentum, SlowMo
from .muon import Muon
from .onebit_adam import OneBitAdam
from .optimizer import DistributedOptimizer
from .named_recipes import Recipe, muon_groups, recipe, recipes
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
answer_foreign_words([name for name in __all__ if name != "ddp_hook"], globals())


def __getattr__(name):
    raise missing_name(__name__, name)
