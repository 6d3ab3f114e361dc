"""Bandoneon: gradients through parameter servers that compress both ways.

`bandoneon.torch` is what a training program imports. This package itself needs no torch: it holds
the worker of this process, and `LocalCluster` for a whole job inside one process.
"""

from . import metrics, trace
from ._native import CodecTraits, check_codec, codec_traits
from .errors import (
    AlreadyExists,
    BandoneonError,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    Evicted,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    JobFailed,
    NotFound,
    OutcomeUnknown,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from .json_log import JsonFormatter
from .local_cluster import LocalCluster
from .micro_batches import MicroBatches, TimeModel, micro_batches
from .session import (
    default_worker,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    report,
    settings_help,
    shutdown,
    size,
)
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "BandoneonError",
    "Cancelled",
    "CodecTraits",
    "DataLoss",
    "DeadlineExceeded",
    "Evicted",
    "FailedPrecondition",
    "InternalError",
    "InvalidArgument",
    "JobFailed",
    "JsonFormatter",
    "LocalCluster",
    "MicroBatches",
    "NotFound",
    "OutcomeUnknown",
    "OutOfRange",
    "PermissionDenied",
    "ResourceExhausted",
    "TimeModel",
    "Unavailable",
    "Unimplemented",
    "Worker",
    "check_codec",
    "codec_traits",
    "default_worker",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "metrics",
    "micro_batches",
    "rank",
    "report",
    "settings_help",
    "shutdown",
    "size",
    "trace",
]
