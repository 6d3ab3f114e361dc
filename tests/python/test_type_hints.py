"""What the interface says of its types: everything, and what mypy makes of a program that uses it."""

import inspect
import os
import subprocess
import sys
import typing

import bandoneon
import bandoneon.torch as bdn
import pytest

# torch looks at a hook's annotations itself, and takes none but its own, unquoted.
WITHOUT = {"ddp_hook"}

PROGRAM = """
import bandoneon
import bandoneon.torch as bdn
from torch import nn

worker = bdn.init(scheduler="127.0.0.1:7000")
rank: int = worker.rank
model = nn.Linear(4, 4)
cluster = bandoneon.LocalCluster(workers=2)
results = cluster.run(lambda worker: worker.size)
bdn.broadcast_parameters(model, root=0)
codec: str = bandoneon.check_codec("ef(onebit)")
bdn.shutdown(timeout=3.0)
"""
MISTAKES = {
    "bdn.init(scheduler=7000)": 'has incompatible type "int"',
    "bdn.shutdown(timeout='3s')": 'has incompatible type "str"',
    "number: str = bdn.rank()": "Incompatible types in assignment",
    "bandoneon.check_codec(b'none')": 'has incompatible type "bytes"',
    "bandoneon.LocalCluster(workers='two')": 'has incompatible type "str"',
}


def public_functions():
    """[(name, function)] of both packages: functions, and the methods that classes define."""
    found = {}
    for module in (bandoneon, bdn):
        for name in getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]):
            thing = getattr(module, name)
            if name in WITHOUT:
                continue
            if not getattr(thing, "__module__", "").startswith("bandoneon"):
                continue
            if inspect.isfunction(thing):
                found[name] = thing
            elif inspect.isclass(thing):
                first = thing.__dict__.get("__init__")
                if inspect.isfunction(first) and not issubclass(thing, Exception) and name != "Worker" and name != "Handle":
                    found[name] = first
    return sorted(found.items())


@pytest.mark.parametrize("name, function", public_functions(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_argument_says_what_it_is(name, function):
    hints = typing.get_type_hints(function) if sys.version_info >= (3, 10) else function.__annotations__
    parameters = [p for p in inspect.signature(function).parameters if p != "self"]
    assert set(parameters) | {"return"} <= hints.keys() | ({"return"} if name in ("save", "load", "synchronize") else set())


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("typed")
    # torch itself, which is large, is taken for anything.
    (folder / "mypy.ini").write_text(
        "[mypy]\nfollow_imports = silent\ncheck_untyped_defs = False\n"
        "[mypy-torch.*]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n"
        "[mypy-torch]\nfollow_imports = skip\n")

    def run(program):
        (folder / "program.py").write_text(program)
        env = os.environ | {"MYPYPATH": os.path.dirname(os.path.dirname(bandoneon.__file__))}
        done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"], cwd=folder, env=env,
                              capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    return run


def test_a_program_that_is_right_is_told_so(check):
    code, said = check(PROGRAM)
    assert code == 0, said


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(check, mistake):
    code, said = check(PROGRAM + mistake + "\n")
    assert code == 1 and MISTAKES[mistake] in said, said
