"""Bandoneon: gradients through parameter servers that compress both ways.

`bandoneon.torch` is what a training program imports. This package itself needs no torch: it holds
the worker of this process, and `LocalCluster` for a whole job inside one process.
"""

from ._native import check_codec
from .errors import (
    AlreadyExists,
    BandoneonError,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InternalError,
    InvalidArgument,
    JobFailed,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from .local_cluster import LocalCluster
from .session import default_worker, init, is_initialized, rank, settings_help, shutdown, size
from .worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "BandoneonError",
    "Cancelled",
    "DataLoss",
    "DeadlineExceeded",
    "FailedPrecondition",
    "InternalError",
    "InvalidArgument",
    "JobFailed",
    "LocalCluster",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "ResourceExhausted",
    "Unavailable",
    "Unimplemented",
    "Worker",
    "check_codec",
    "default_worker",
    "init",
    "is_initialized",
    "rank",
    "settings_help",
    "shutdown",
    "size",
]
