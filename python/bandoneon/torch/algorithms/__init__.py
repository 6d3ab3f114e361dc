"""Published algorithms: optimizers that exchange by themselves, optimizers to put inside those that do, and the outer
steps of LocalSteps. docs/algorithms.md says which is for what.

    import bandoneon.torch as bdn

    bdn.init()
    optimizer = bdn.algorithms.Lion(model.named_parameters(), lr=3e-4)
"""

from ...micro_batches import micro_batches
from ..expand import expand
from ..foreign_words import answer_foreign_words
from .auc_loss import AUCLoss
from .cser import CSER
from .decay_momentum_sgd import DecayMomentumSGD
from .decoupled_momentum import DeMo
from .ef21 import EF21
from .expert_plan import ExpertPlan
from .expert_pruning import masked, prune_experts
from .frozen_adam import FrozenAdamW
from .kronecker import KFAC
from .lans import LANS
from .lion import Lion
from .muon import Muon, muon_groups
from .onebit_adam import OneBitAdam
from .outer_steps import Average, Nesterov, Prox, SignMomentum, SlowMo
from .pace import Pace
from .qsr import QSR
from .streaming import Streaming

__all__ = [
    "AUCLoss",
    "Average",
    "CSER",
    "DeMo",
    "DecayMomentumSGD",
    "EF21",
    "ExpertPlan",
    "FrozenAdamW",
    "KFAC",
    "LANS",
    "Lion",
    "Muon",
    "Nesterov",
    "OneBitAdam",
    "Pace",
    "Prox",
    "QSR",
    "SignMomentum",
    "SlowMo",
    "Streaming",
    "expand",
    "masked",
    "micro_batches",
    "muon_groups",
    "prune_experts",
]

answer_foreign_words(__all__, globals())
