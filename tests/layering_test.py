"""Reads every #include of the tree and fails on a breach of docs/layers.txt.

Run by pytest, or alone: python3 tests/layering_test.py
"""

import collections
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

sys.path.insert(0, str(ROOT / "scripts"))
import layers as layers_file  # noqa: E402  # pylint: disable=wrong-import-position

LAYERS = layers_file.read((ROOT / "docs/layers.txt").read_text(encoding="utf-8"))

# Names that more than one directory may have.
REPEATED_NAMES = {"CMakeLists.txt", "README.md", "__init__.py", "conftest.py", "kustomization.yaml", "main.cc"}
# The compiled and the scripted tree: what is not ours (build/, .git/) is outside of it.
TOP = ["common", "kernels", "compressors", "device", "link", "proto", "scheduler", "server", "worker", "trace", "replay", "cli", "python",
       "examples", "tests", "deploy", "docs", "scripts", "cmake"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


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


def check_include(root: pathlib.Path, path: str, quote: str, include: str) -> str | None:
    """What is wrong with one #include, None when nothing is."""
    module = LAYERS.module_of(path)
    library = LAYERS.library_of(include)
    if library:
        if LAYERS.may_use(module, library):
            return None
        places = [m for m in LAYERS.modules if m != "tests" and LAYERS.may_use(m, library)]
        return f"{path}: {include}: {library} belongs in {', '.join(sorted(places)) or 'tests'}"
    if quote == "<":
        return None  # the standard library's or the system's
    if not (root / include).is_file():
        return f"{path}: {include}: no such file from the root of the tree"
    other = LAYERS.module_of(include)
    return None if LAYERS.may_include(module, other) else f"{path}: {include}: {module} must not include {other}"


def check_leaks(includes: dict[str, list[tuple[str, str]]]) -> list[str]:
    """Headers that hand a third-party header (other than absl's) to another directory."""
    includers = collections.defaultdict(set)
    for path, lines in includes.items():
        for _, include in lines:
            includers[include].add(path)
    breaches = []
    for header, lines in includes.items():
        names = {library for _, i in lines if (library := LAYERS.library_of(i))} - {"absl"}
        if not names or not header.endswith(".h") or LAYERS.module_of(header) == "tests":
            continue
        reached, todo = set(), [header]
        while todo:
            new = includers[todo.pop()] - reached
            reached |= new
            todo.extend(new)
        for path in sorted(p for p in reached if LAYERS.module_of(p) not in (LAYERS.module_of(header), "tests")):
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


def test_the_layers_stand_on_each_other():
    assert not layers_file.faults_of(LAYERS), "\n" + "\n".join(layers_file.faults_of(LAYERS))


def test_every_directory_of_sources_is_a_module():
    tops = {layers_file.top_of(path) for path in read_includes(ROOT)}
    assert tops <= set(map(layers_file.top_of, LAYERS.modules))


def test_the_page_has_the_table_of_the_layers():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert layers_file.with_table(page, layers_file.table_of(LAYERS)) == page, "run python3 scripts/layers.py"


def test_no_product_links_what_is_for_tests():
    lists = [path for path in files(ROOT) if path.endswith("CMakeLists.txt") and not path.startswith("tests/")]
    assert lists and not [path for path in lists if re.search(r"\bbdn_test", (ROOT / path).read_text(encoding="utf-8"))]


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
        "server/main.cc: gets gRPC through common/cluster/channel.h",
    ]


def test_what_the_table_allows_is_no_breach(tmp_path):
    write(tmp_path, "common/base/bytes.h", "#include <span>\n")
    write(tmp_path, "common/base/log.cc", "#include <string>\n")
    write(tmp_path, "server/shard.cc", '#include "absl/status/status.h"\n#include "common/base/bytes.h"\n')
    write(tmp_path, "tests/server/shard_test.cc", "#include <gtest/gtest.h>\n")
    assert breaches_of(tmp_path) == []


def test_an_upward_line_and_a_cycle_of_directories_are_found():
    layers = layers_file.read("module base:\nmodule link: base server\nmodule base/more: link | zlib\n"
                              "module server: base nothing link\n")
    assert layers_file.faults_of(layers) == [
        "link names server, which is above it",
        "base/more does not stand with the other modules of base",
        "base/more names zlib, which is no library",
        "server names nothing, which is no module",
    ]


@pytest.mark.parametrize("line", ["modul base:", "module base", "module a: \nmodule a:"])
def test_a_line_that_cannot_be_read_is_named(line):
    with pytest.raises(ValueError, match="docs/layers.txt:"):
        layers_file.read(line)


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
