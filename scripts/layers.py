"""Reads docs/layers.txt, and makes the table of modules in docs/architecture.md from it.

usage: layers.py [--check]

Writes the table; with --check it changes nothing, and exits 1 where the table is not that of docs/layers.txt.
"""

import dataclasses
import fnmatch
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD = "| module | may include | third party |\n|---|---|---|\n"


@dataclasses.dataclass(frozen=True)
class Layers:
    """The modules from the ground up, each with what it may include, and the libraries with their headers."""
    modules: dict[str, list[str]]
    libraries_of: dict[str, list[str]]
    headers: dict[str, list[str]]

    def module_of(self, path: str) -> str:
        """The deepest module that holds `path`, which is relative to the root; its top-level directory otherwise."""
        known = [module for module in self.modules if path.startswith(module + "/")]
        return max(known, key=len) if known else top_of(path)

    def library_of(self, include: str) -> str | None:
        """The library that the header belongs to, None for those of the system and of this tree."""
        return next((name for name, patterns in self.headers.items()
                     if any(fnmatch.fnmatchcase(include, pattern) for pattern in patterns)), None)

    def may_include(self, module: str, other: str) -> bool:
        allowed = self.modules.get(module, [])
        return other == module or other in allowed or "*" in allowed

    def may_use(self, module: str, library: str) -> bool:
        if library == "absl":
            return module != "examples"
        allowed = self.libraries_of.get(module, [])
        return library in allowed or "*" in allowed


def top_of(path: str) -> str:
    return path.split("/")[0]


def read(text: str) -> Layers:
    layers = Layers({}, {}, {})
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        kind, _, rest = line.partition(" ")
        name, colon, names = rest.partition(":")
        if kind not in ("module", "library") or not colon:
            raise ValueError(f"docs/layers.txt:{number}: {line!r} is no line 'module NAME:' or 'library NAME:'")
        if name in layers.modules or name in layers.headers:
            raise ValueError(f"docs/layers.txt:{number}: {name} stands there twice; keep one of its lines")
        if kind == "library":
            layers.headers[name] = names.split()
            continue
        modules, _, libraries = names.partition("|")
        layers.modules[name] = modules.split()
        layers.libraries_of[name] = [library.strip() for library in libraries.split(",") if library.strip()]
    return layers


def faults_of(layers: Layers) -> list[str]:
    """Lines of the file that name nothing, or that let a top-level directory include one that is not below it."""
    found, tops = [], []
    for module, others in layers.modules.items():
        top = top_of(module)
        if top in tops[:-1]:
            found.append(f"{module} does not stand with the other modules of {top}")
        if top not in tops:
            tops.append(top)
        for other in others:
            if other != "*" and other not in layers.modules:
                found.append(f"{module} names {other}, which is no module")
            elif other != "*" and top_of(other) not in tops:
                found.append(f"{module} names {other}, which is above it")
        found += [f"{module} names {library}, which is no library" for library in layers.libraries_of[module]
                  if library != "*" and library not in layers.headers]
    return found


def table_of(layers: Layers) -> str:
    rows = []
    for module, others in layers.modules.items():
        names = ["everything" if other == "*" else other.removeprefix("common/") for other in others]
        libraries = ["everything" if library == "*" else library for library in layers.libraries_of[module]]
        cells = [module, ", ".join(names), ", ".join(libraries)]
        rows.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n")
    return HEAD + "".join(rows)


def with_table(page: str, table: str) -> str:
    """The page with its table replaced."""
    before, rest = page.split(HEAD)
    return before + table + rest[rest.index("\n\n") + 1:]


def main() -> int:
    path = ROOT / "docs/architecture.md"
    page = path.read_text(encoding="utf-8")
    made = with_table(page, table_of(read((ROOT / "docs/layers.txt").read_text(encoding="utf-8"))))
    if "--check" in sys.argv[1:]:
        return int(made != page)
    path.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
