"""Reads every #include of the tree and fails on a breach of the table in docs/architecture.md.

Run by pytest, or alone: python3 tests/layering_test.py
"""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

BASE, WIRE, TRANSPORT = "common/base", "common/wire", "common/transport"
CLUSTER, LINK, KERNELS = "common/cluster", "link", "kernels"
ZMQ, SHM, FABRIC = "common/transport/zmq", "common/transport/shm", "common/transport/fabric"
LOCAL, C_API, HOST = "worker/local", "worker/c_api", "worker/host"
TELEMETRY = "common/telemetry"
CERTS = "common/certs"
HTTP = "common/http"
DEVICE_KERNELS = "device/kernels"

# Whose headers a module may include besides its own.
MAY_INCLUDE = {
    BASE: set(),
    TELEMETRY: {BASE},
    WIRE: {BASE},
    TRANSPORT: {BASE, WIRE, ZMQ, SHM, FABRIC},
    ZMQ: {BASE, WIRE, TRANSPORT},
    SHM: {BASE, WIRE, TRANSPORT},
    FABRIC: {BASE, WIRE, TRANSPORT},
    CERTS: {BASE},
    CLUSTER: {BASE, CERTS, TELEMETRY, "proto"},
    HTTP: {BASE, CLUSTER, TELEMETRY},
    LINK: {BASE, CLUSTER, TELEMETRY, "compressors"},
    "compressors": {BASE, KERNELS},
    "device": {BASE, "compressors", KERNELS, DEVICE_KERNELS},
    DEVICE_KERNELS: {KERNELS},
    KERNELS: {BASE},
    "scheduler": {BASE, CLUSTER, HTTP, TELEMETRY, "proto"},
    "server": {BASE, CERTS, TELEMETRY, WIRE, TRANSPORT, CLUSTER, HTTP, LINK, "compressors", KERNELS},
    "worker": {BASE, CERTS, TELEMETRY, WIRE, TRANSPORT, CLUSTER, LINK, "compressors", "device", KERNELS},
    HOST: {BASE, TELEMETRY, WIRE, TRANSPORT, SHM, CLUSTER, HTTP, "compressors", KERNELS, "proto", "worker"},
    # Whole clusters in one process: docs/adr/0003-c-api-hosts-local-clusters.md.
    LOCAL: {BASE, TELEMETRY, WIRE, TRANSPORT, CLUSTER, "scheduler", "server"},
    C_API: {LOCAL, HOST, BASE, TELEMETRY, WIRE, TRANSPORT, CLUSTER, LINK, "compressors", "device", "scheduler", "server", "worker"},
    "cli": {BASE, C_API, CERTS, FABRIC},
    "examples": {C_API},
    "proto": set(),
}
# tests/ may include everything.

# Where a third-party header may be included. absl's may be anywhere; tests may include all.
THIRD_PARTY = [
    ("absl", re.compile(r"absl/"), set(MAY_INCLUDE) - {"examples"}),
    ("ZeroMQ", re.compile(r"zmq(_addon)?\.h(pp)?$"), {ZMQ}),
    ("libfabric", re.compile(r"rdma/"), {FABRIC}),
    ("Highway", re.compile(r"hwy/"), {KERNELS}),
    ("protobuf or gRPC", re.compile(r"(grpc|grpcpp|google/protobuf)/|.*\.pb\.h$"),
     {CLUSTER, "scheduler", HOST}),
    ("OpenSSL", re.compile(r"openssl/"), {CERTS}),
    ("nlohmann-json", re.compile(r"nlohmann/"), {CLUSTER, TELEMETRY, "cli"}),
    ("libmicrohttpd or prometheus-cpp", re.compile(r"(microhttpd\.h|prometheus/)"), {HTTP}),
    ("GoogleTest", re.compile(r"(gtest|gmock)/"), set()),
    ("Google Benchmark", re.compile(r"benchmark/"), set()),
]
ONLY_IN_SOURCES = {name for name, _, _ in THIRD_PARTY} - {"absl"}

# Names that more than one directory may have.
REPEATED_NAMES = {"CMakeLists.txt", "README.md", "__init__.py", "conftest.py", "kustomization.yaml", "main.cc"}
# The compiled and the scripted tree: what is not ours (build/, .git/) is outside of it.
TOP = ["common", "kernels", "compressors", "device", "link", "proto", "scheduler", "server", "worker", "cli", "python",
       "examples", "tests", "deploy", "docs", "scripts", "cmake"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def module_of(path: str) -> str:
    """The longest known module that `path` (relative to the root) lies in; its top folder otherwise."""
    known = [m for m in MAY_INCLUDE if path.startswith(m + "/")]
    return max(known, key=len) if known else path.split("/")[0]


def files(root: pathlib.Path):
    for top in TOP:
        for path in sorted((root / top).rglob("*")):
            parts = path.relative_to(root).parts
            hidden = any(p.startswith(".") or p == "__pycache__" or p.endswith(".egg-info") for p in parts)
            if path.is_file() and not hidden:
                yield path.relative_to(root).as_posix()


def read_includes(root: pathlib.Path) -> dict[str, list[tuple[str, str]]]:
    """{file: [(bracket or quote, what it includes)]} of every C, C++ and CUDA file."""
    return {path: INCLUDE.findall((root / path).read_text(encoding="utf-8"))
            for path in files(root) if path.endswith((".h", ".cc", ".cu", ".c"))}


def third_party_of(include: str):
    return next((entry for entry in THIRD_PARTY if entry[1].match(include)), None)


def check_include(root: pathlib.Path, path: str, quote: str, include: str) -> str | None:
    """What is wrong with one #include, None when nothing is."""
    module = module_of(path)
    foreign = third_party_of(include)
    if foreign:
        name, _, where = foreign
        if module in where or module == "tests":
            return None
        return f"{path}: {include}: {name} belongs in {', '.join(sorted(where)) or 'tests'}"
    if quote == "<":
        return None  # the standard library's or the system's
    if not (root / include).is_file():
        return f"{path}: {include}: no such file from the root of the tree"
    other = module_of(include)
    if other == module or module == "tests" or other in MAY_INCLUDE.get(module, set()):
        return None
    return f"{path}: {include}: {module} must not include {other}"


def check_leaks(includes: dict[str, list[tuple[str, str]]]) -> list[str]:
    """Headers that hand a third-party header (other than absl's) to another directory."""
    includers = collections.defaultdict(set)
    for path, lines in includes.items():
        for _, include in lines:
            includers[include].add(path)
    breaches = []
    for header, lines in includes.items():
        names = {e[0] for _, i in lines if (e := third_party_of(i))} & ONLY_IN_SOURCES
        if not names or not header.endswith(".h") or module_of(header) == "tests":
            continue
        reached, todo = set(), [header]
        while todo:
            new = includers[todo.pop()] - reached
            reached |= new
            todo.extend(new)
        for path in sorted(p for p in reached if module_of(p) not in (module_of(header), "tests")):
            breaches.append(f"{path}: gets {', '.join(sorted(names))} through {header}")
    return breaches


def breaches_of(root: pathlib.Path) -> list[str]:
    includes = read_includes(root)
    found = [check_include(root, path, quote, include)
             for path, lines in includes.items() for quote, include in lines]
    return [breach for breach in found if breach] + check_leaks(includes)


def repeated_names(root: pathlib.Path) -> list[str]:
    places = collections.defaultdict(list)
    for path in files(root):
        places[path.rsplit("/", 1)[-1]].append(path)
    return [" and ".join(paths) for name, paths in sorted(places.items())
            if len(paths) > 1 and name not in REPEATED_NAMES]


def test_no_include_breaks_the_layering():
    assert read_includes(ROOT), "no source was found"
    assert not breaches_of(ROOT), "\n" + "\n".join(breaches_of(ROOT))


def test_file_names_are_unique():
    assert not repeated_names(ROOT), "\n" + "\n".join(repeated_names(ROOT))


def write(root: pathlib.Path, path: str, text: str):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def test_a_breach_of_each_kind_is_found(tmp_path):
    write(tmp_path, "server/shard.h", "#pragma once\n")
    write(tmp_path, "common/cluster/channel.h", "#include <grpcpp/grpcpp.h>\n")
    write(tmp_path, "worker/pipeline.cc", '#include "server/shard.h"\n')
    write(tmp_path, "compressors/onebit.cc", "#include <hwy/highway.h>\n")
    write(tmp_path, "server/main.cc", '#include "common/cluster/channel.h"\n')
    write(tmp_path, "cli/run.cc", '#include "common/base/nothing.h"\n')
    assert breaches_of(tmp_path) == [
        "compressors/onebit.cc: hwy/highway.h: Highway belongs in kernels",
        "worker/pipeline.cc: server/shard.h: worker must not include server",
        "cli/run.cc: common/base/nothing.h: no such file from the root of the tree",
        "server/main.cc: gets protobuf or gRPC through common/cluster/channel.h",
    ]


def test_what_the_table_allows_is_no_breach(tmp_path):
    write(tmp_path, "common/base/bytes.h", "#include <span>\n")
    write(tmp_path, "common/base/log.cc", "#include <string>\n")
    write(tmp_path, "server/shard.cc", '#include "absl/status/status.h"\n#include "common/base/bytes.h"\n')
    write(tmp_path, "tests/server/shard_test.cc", "#include <gtest/gtest.h>\n")
    assert breaches_of(tmp_path) == []


def test_a_repeated_name_is_found(tmp_path):
    write(tmp_path, "server/main.cc", "")
    write(tmp_path, "scheduler/main.cc", "")
    write(tmp_path, "server/queue.h", "")
    write(tmp_path, "worker/queue.h", "")
    assert repeated_names(tmp_path) == ["server/queue.h and worker/queue.h"]


if __name__ == "__main__":
    problems = breaches_of(ROOT) + repeated_names(ROOT)
    print("\n".join(problems) or "no breach")
    sys.exit(bool(problems))
