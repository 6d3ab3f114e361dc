"""What the package is written for: the oldest Python that it says it takes."""

import ast
import pathlib
import re

import pytest

import bandoneon

PACKAGE = pathlib.Path(bandoneon.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_it_is_written_in_the_oldest_python_that_it_takes(path):
    wanted = re.search(r'requires-python = ">=3\.(\d+)"', (PACKAGE.parent / "pyproject.toml").read_text())
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, int(wanted[1])))
    # What the parser takes and an older Python does not: X | Y of types, and arguments that came later.
    assert not re.search(r"\bstrict=(True|False)\)|\bdataclass\([^)]*(slots|kw_only)=", text)
    annotated = [node for node in ast.walk(tree) if isinstance(node, (ast.arg, ast.AnnAssign))]
    unions = [a for a in annotated if isinstance(a.annotation, ast.BinOp)]
    assert not unions or "from __future__ import annotations" in text
