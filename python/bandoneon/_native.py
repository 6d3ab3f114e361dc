"""The C library by ctypes: worker/c_api/bandoneon.h, name for name. Nothing else calls into C."""

from __future__ import annotations

import ctypes
import enum
import functools
import os
import pathlib
from typing import Any, Callable, Mapping
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)

from . import errors

ABI_VERSION = 16

OK = 0
CANCELLED = 1
DEADLINE_EXCEEDED = 4

FLOAT32, FLOAT16, BFLOAT16, FLOAT64 = range(4)

HOST = 0  # Push.device; that of GPU n is n + 1.

FUSE = 1
ABSENT = 1
RESULT_ABSENT = 1
RESULT_NONFINITE = 2
NO_TENSOR = 2**32 - 1  # Mark.tensor of what has none


class CodecTraits(enum.IntFlag):
    """What a codec promises, and the memory around it: codec_traits."""

    LOSSLESS = 1  # What arrives is what was sent, bit for bit.
    CARRIES_SUMS = 2  # A reply by the same codec carries all of the sum of its pushes.
    ADDS_ENCODED = 4  # Servers add payloads without decoding them.
    SHARES_DRAW = 8  # All workers draw alike which elements they send.
    ERROR_FEEDBACK = 16  # ef(...): the sender keeps what was left out, and sends it later.
    LEARNING_RATE_CORRECTION = 32  # ef(..., correction=lr): every push needs a learning rate.
    DELTA = 64  # delta(...): for pulling weights that servers hold.
    SCHEDULE = 128  # The codec changes with the step.


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("settings", POINTER(c_char_p)),
        ("num_settings", c_size_t),
    ]


class Declaration(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("elements", c_uint64),
        ("dtype", c_int32),
        ("flags", c_uint32),
        ("push", c_char_p),
        ("pull", c_char_p),
        ("warmup_steps", c_uint64),
        ("momentum", c_float),
        ("group", c_uint32),
        ("rule", c_char_p),
        ("ranks", POINTER(c_int32)),
        ("num_ranks", c_size_t),
    ]


class Push(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("tensor", c_uint32),
        ("flags", c_uint32),
        ("priority", c_int32),
        ("device", c_int32),
        ("stream", c_void_p),
        ("weight", c_float),
        ("loss_scale", c_float),
        ("learning_rate", c_float),
        ("program_steps", c_uint32),
        ("left_out", c_void_p),
        ("done", c_void_p),
        ("user_data", c_void_p),
    ]


class Bytes(ctypes.Structure):
    """bdn_bytes: some bytes of a broadcast."""

    _fields_ = [("data", c_void_p), ("bytes", c_uint64)]


class Result(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("step", c_uint64),
        ("flags", c_uint32),
        ("guessed", c_uint32),
    ]


class Table(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("rows", c_uint64),
        ("width", c_uint32),
        ("group", c_uint32),
        ("rule", c_char_p),
        ("push", c_char_p),
        ("pull", c_char_p),
        ("init", c_char_p),
        ("init_value", c_double),
        ("expect_rows", c_uint64),
        ("admit", c_uint64),
        ("max_rows", c_uint64),
        ("evict", c_char_p),
        ("ttl", c_uint64),
    ]


class Rows(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("ids", c_void_p),
        ("num_ids", c_size_t),
        ("gradients", c_void_p),
        ("wanted", c_void_p),
        ("num_wanted", c_size_t),
        ("out", c_void_p),
        ("table", c_uint32),
        ("reserved", c_uint32),
    ]


class RowsStep(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("weight", c_float),
        ("loss_scale", c_float),
        ("learning_rate", c_float),
        ("program_steps", c_uint32),
        ("priority", c_int32),
        ("reserved", c_uint32),
    ]


class Mark(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("begin_ns", c_int64),
        ("wall_ns", c_uint64),
        ("cpu_ns", c_uint64),
        ("queued_ns", c_uint64),
        ("step", c_uint64),
        ("tensor", c_uint32),
        ("kind", c_uint32),
        ("text", c_char_p),
    ]


class TableLayout(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("width", c_uint32),
        ("moments", c_uint32),
        ("buckets", c_uint32),
        ("is_limited", c_uint32),
    ]


class RowScan(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("table", c_uint32),
        ("bucket", c_uint32),
        ("cursor", c_uint64),
        ("since", c_uint64),
        ("room", c_uint64),
        ("ids", c_void_p),
        ("records", c_void_p),
        ("count", c_uint64),
        ("updates", c_uint64),
        ("complete_since", c_uint64),
        ("list", c_uint32),
        ("reserved", c_uint32),
    ]


class DumpedNode(ctypes.Structure):
    _fields_ = [
        ("job", c_char_p),
        ("role", c_char_p),
        ("host", c_char_p),
        ("rank", c_int32),
        ("node", c_uint32),
        ("code", c_int32),
        ("nodes", c_uint32),
        ("nodes_left_out", c_uint32),
        ("reserved", c_uint32),
        ("failure", c_char_p),
        ("recording", c_void_p),
        ("recording_bytes", c_uint64),
    ]


TakeDumped = ctypes.CFUNCTYPE(None, c_void_p, POINTER(DumpedNode))


class RowRecords(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("table", c_uint32),
        ("replaces", c_uint32),
        ("updates", c_uint64),
        ("ids", c_void_p),
        ("num_ids", c_uint64),
        ("records", c_void_p),
        ("list", c_uint32),
        ("reserved", c_uint32),
    ]


# name -> (result, arguments). A worker and a cluster are opaque pointers, a ticket is a number.
_FUNCTIONS = {
    "bdn_abi_version": (c_int, []),
    "bdn_version": (c_char_p, []),
    "bdn_last_error": (c_char_p, []),
    "bdn_last_error_field": (c_char_p, [c_char_p]),
    "bdn_settings_help": (c_char_p, []),
    "bdn_create": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "bdn_free": (None, [c_void_p]),
    "bdn_leave": (c_int, [c_void_p, c_double]),
    "bdn_depart": (c_int, [c_void_p, c_char_p]),
    "bdn_abort_job": (c_int, [c_void_p, c_char_p]),
    "bdn_leave_at_exit": (c_int, [c_void_p, c_char_p]),
    "bdn_rank": (c_int, [c_void_p]),
    "bdn_size": (c_int, [c_void_p]),
    "bdn_size_among": (c_int, [c_void_p, POINTER(c_int32), c_size_t, POINTER(c_int32)]),
    "bdn_is_candidate": (c_int, [c_void_p]),
    "bdn_candidates": (c_int, [c_void_p]),
    "bdn_host_ranks": (c_int, [c_void_p, c_int, POINTER(c_int), POINTER(c_int)]),
    "bdn_boundary": (c_int, [c_void_p, c_double, POINTER(c_int32), c_size_t, POINTER(c_size_t)]),
    "bdn_joined_size": (c_int, [c_void_p]),
    "bdn_first_rank": (c_int, [c_void_p]),
    "bdn_local_cluster_create": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "bdn_create_local": (c_int, [c_void_p, POINTER(Options), POINTER(c_void_p)]),
    "bdn_local_cluster_free": (None, [c_void_p]),
    "bdn_declare": (c_int, [c_void_p, POINTER(Declaration), c_size_t, POINTER(c_uint32), c_double]),
    "bdn_servers_of": (c_int, [c_void_p, c_uint32, POINTER(c_int32), c_size_t, POINTER(c_size_t)]),
    "bdn_retire": (c_int, [c_void_p, POINTER(c_uint32), c_size_t]),
    "bdn_push_pull_all": (
        c_int,
        [c_void_p, POINTER(Push), c_size_t, POINTER(c_uint64), POINTER(c_size_t)],
    ),
    "bdn_wait_all": (
        c_int,
        [c_void_p, POINTER(c_uint64), c_size_t, c_double, POINTER(Result), POINTER(c_size_t)],
    ),
    "bdn_wait_stream_all": (
        c_int,
        [
            c_void_p,
            POINTER(c_uint64),
            POINTER(c_void_p),
            c_size_t,
            c_double,
            POINTER(Result),
            POINTER(c_size_t),
        ],
    ),
    "bdn_describe_devices": (c_int, [POINTER(Options), c_char_p, c_size_t, POINTER(c_size_t)]),
    "bdn_alloc": (c_int, [c_void_p, c_uint64, POINTER(c_void_p)]),
    "bdn_free_memory": (None, [c_void_p]),
    "bdn_name_among": (c_size_t, [c_char_p, POINTER(c_int32), c_size_t, c_char_p, c_size_t]),
    "bdn_broadcast": (c_int, [c_void_p, c_char_p, c_void_p, c_uint64, c_int, c_double]),
    "bdn_broadcast_parts": (
        c_int,
        [c_void_p, c_char_p, POINTER(Bytes), c_size_t, c_int, c_int, c_double],
    ),
    "bdn_crc32c": (c_uint32, [c_void_p, c_uint64]),
    "bdn_barrier": (c_int, [c_void_p, c_char_p, c_double]),
    "bdn_meet": (c_int, [c_void_p, c_char_p, c_double, POINTER(c_int32), c_size_t, POINTER(c_size_t)]),
    "bdn_report": (c_int, [c_void_p, c_char_p, c_uint64, c_double]),
    "bdn_get_state": (c_int, [c_void_p, c_uint32, c_char_p, POINTER(c_float), c_uint64]),
    "bdn_set_state": (c_int, [c_void_p, c_uint32, c_char_p, POINTER(c_float), c_uint64]),
    "bdn_get_step": (c_int, [c_void_p, c_uint32, POINTER(c_uint64)]),
    "bdn_set_step": (c_int, [c_void_p, c_uint32, c_uint64]),
    "bdn_rules_help": (c_char_p, []),
    "bdn_check_rule": (c_int, [c_char_p, c_char_p, c_size_t]),
    "bdn_fetch_weights": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64, c_double]),
    "bdn_sync_weights": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64, c_double]),
    "bdn_get_server_state": (
        c_int,
        [c_void_p, c_uint32, c_char_p, c_void_p, c_uint64, c_double],
    ),
    "bdn_set_server_state": (
        c_int,
        [c_void_p, c_uint32, c_char_p, c_void_p, c_uint64, c_uint64, c_double],
    ),
    "bdn_get_server_counters": (
        c_int,
        [c_void_p, c_uint32, POINTER(c_uint64), POINTER(c_float), c_double],
    ),
    "bdn_set_server_counters": (
        c_int,
        [c_void_p, c_uint32, c_uint64, c_float, c_uint64, c_double],
    ),
    "bdn_set_server_rule": (c_int, [c_void_p, POINTER(c_uint32), c_size_t, c_char_p, c_double]),
    "bdn_declare_tables": (c_int, [c_void_p, POINTER(Table), c_size_t, POINTER(c_uint32), c_double]),
    "bdn_push_rows": (c_int, [c_void_p, POINTER(RowsStep), POINTER(Rows), c_size_t, POINTER(c_uint64)]),
    "bdn_fetch_rows": (c_int, [c_void_p, POINTER(Rows), c_size_t, POINTER(c_uint64)]),
    "bdn_summed_rows": (
        c_int,
        [c_void_p, c_uint32, c_uint64, c_void_p, c_void_p, POINTER(c_uint64)],
    ),
    "bdn_set_rows": (c_int, [c_void_p, POINTER(Rows), POINTER(c_uint64)]),
    "bdn_marks": (c_int, [c_void_p, POINTER(Mark), c_size_t]),
    "bdn_records": (c_int, [c_void_p]),
    "bdn_write_recording": (c_int, [c_void_p, c_char_p, c_char_p, c_size_t]),
    "bdn_get_table_layout": (c_int, [c_void_p, c_uint32, POINTER(TableLayout)]),
    "bdn_scan_rows": (c_int, [c_void_p, POINTER(RowScan), POINTER(c_uint64)]),
    "bdn_set_row_records": (c_int, [c_void_p, POINTER(RowRecords), POINTER(c_uint64)]),
    "bdn_stats_json": (c_size_t, [c_void_p, c_char_p, c_size_t]),
    "bdn_json_log_line": (c_size_t, [c_char_p, c_char_p, c_double, c_char_p, c_size_t]),
    "bdn_status_json": (c_int, [POINTER(Options), c_double, c_char_p, c_size_t, POINTER(c_size_t)]),
    "bdn_dump_traces": (c_int, [POINTER(Options), c_char_p, c_double, c_double, TakeDumped, c_void_p]),
    "bdn_check_codec": (c_int, [c_char_p, c_char_p, c_size_t]),
    "bdn_codecs_help": (c_char_p, []),
    "bdn_codec_traits": (c_int, [c_char_p, POINTER(c_uint32)]),
}

_library: ctypes.CDLL | None = None
# Whether this process was forked from one that used the library: its threads did not come along.
_forked = False


def library_paths() -> list[pathlib.Path]:
    """Where the library may be, most wanted first."""
    here = pathlib.Path(__file__).resolve().parent
    chosen = os.environ.get("BANDONEON_LIBRARY")
    if chosen:
        return [pathlib.Path(chosen)]
    return [
        here / "lib" / "libbandoneon.so.0",  # of a wheel
        here.parent.parent / "build" / "release" / "lib" / "libbandoneon.so",
    ]


def library() -> ctypes.CDLL:
    """The loaded library. Calls through it drop the GIL."""
    global _library
    if _forked:
        raise errors.FailedPrecondition(
            "this process was forked from one that uses bandoneon; start it with the "
            "multiprocessing method 'spawn' to use bandoneon in it"
        )
    if _library is None:
        _library = _load()
        os.register_at_fork(after_in_child=_after_fork)
    return _library


def _load() -> ctypes.CDLL:
    paths = library_paths()
    for path in paths:
        if path.exists():
            break
    else:
        raise errors.NotFound(
            "libbandoneon.so is at none of " + ", ".join(map(str, paths)) + "; build it "
            "(scripts/build) or set BANDONEON_LIBRARY to its path"
        )
    loaded = ctypes.CDLL(str(path))
    version = loaded.bdn_abi_version()
    if version != ABI_VERSION:
        raise errors.FailedPrecondition(
            f"{path} speaks version {version} of the C interface, this package version {ABI_VERSION}"
        )
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = arguments
    return loaded


def _after_fork() -> None:
    global _forked
    _forked = True


def last_error(code: int) -> errors.BandoneonError:
    """The exception for what the last call on this thread returned."""
    lib = library()
    message = _text(lib.bdn_last_error()) or f"bandoneon failed with code {code}"
    facts: dict[str, str | int | None] = {
        field: _text(lib.bdn_last_error_field(field.encode())) or None
        for field in ("tensor", "step", "stage", "waiting_for")
    }
    step = facts["step"]
    if isinstance(step, str) and step.isdigit():
        facts["step"] = int(step)
    return errors.error_for_code(code, message, **facts)


def check(code: int) -> None:
    if code != OK:
        raise last_error(code)


def c_text(what: str, text: str) -> bytes:
    """`text` for C, where it would end at its first NUL; `what` it is goes into the error."""
    if "\0" in text:
        raise errors.InvalidArgument(f"{what} {text!r} contains NUL, which a name cannot have")
    return text.encode()


def _guard_setting(guard: str | None) -> str:
    known: dict[str | None, str] = {None: "off", "warn": "warn", "fall back": "fall-back"}
    if guard not in known:
        raise errors.InvalidArgument(f'guard={guard!r} is none of None, "warn" and "fall back"')
    return known[guard]


def options(settings: Mapping[str, Any]) -> Options:
    """bdn_options of a dict of settings; underscores in names stand for dashes. guard=None, "warn" or "fall
    back" says quality_guard."""
    if "guard" in settings:
        others = {name: value for name, value in settings.items() if name != "guard"}
        settings = others | {"quality-guard": _guard_setting(settings["guard"])}
    lines = [
        c_text("setting", f"{name.replace('_', '-')}={_setting(value)}")
        for name, value in settings.items()
        if value is not None
    ]
    array = (c_char_p * len(lines))(*lines)
    return Options(sizeof(Options), array, len(lines))


def read_text(fill: Callable[[ctypes.Array[ctypes.c_char], int], int]) -> str:
    """What `fill(buffer, capacity) -> needed` writes."""
    buffer = ctypes.create_string_buffer(4096)
    needed = fill(buffer, len(buffer))
    while needed > len(buffer):
        buffer = ctypes.create_string_buffer(needed)
        needed = fill(buffer, len(buffer))
    return buffer.value.decode()


def check_codec(spec: str) -> str:
    """The canonical form of a codec spec; InvalidArgument shows where it is wrong."""
    capacity = len(spec) + 4096
    canonical = ctypes.create_string_buffer(capacity)
    check(library().bdn_check_codec(c_text("codec", spec), canonical, capacity))
    return canonical.value.decode()


@functools.lru_cache(maxsize=None)
def codec_traits(spec: str) -> CodecTraits:
    """The CodecTraits of a codec spec; InvalidArgument shows where it is wrong.

    Of a schedule: the promises that all its stages make, and its memory.
    """
    traits = c_uint32(0)
    check(library().bdn_codec_traits(c_text("codec", spec), byref(traits)))
    return CodecTraits(traits.value)


def check_rule(rule: str) -> str:
    """The canonical form of an update rule; InvalidArgument says what is wrong with it."""
    capacity = len(rule) + 4096
    canonical = ctypes.create_string_buffer(capacity)
    check(library().bdn_check_rule(c_text("rule", rule), canonical, capacity))
    return canonical.value.decode()


def status_json(address: str, timeout: float, **settings: Any) -> str:
    asked = options({"scheduler": address, **settings})
    needed = c_size_t(0)

    def fill(buffer: ctypes.Array[ctypes.c_char], capacity: int) -> int:
        check(library().bdn_status_json(byref(asked), timeout, buffer, capacity, byref(needed)))
        return needed.value

    return read_text(fill)


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(value: bytes | None) -> str:
    return value.decode(errors="replace") if value else ""
