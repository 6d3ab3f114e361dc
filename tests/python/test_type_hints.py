"""What the interface says of its types: everything, and what mypy makes of it, and of a program that uses it."""

import inspect
import os
import pathlib
import subprocess
import sys
import typing

import bandoneon
import bandoneon.torch as bdn
import pytest
from bandoneon.torch import algorithms
from bandoneon.torch.optimizer import _Distributed

from cluster_helpers import make_model, run_job, sgd

PACKAGE = pathlib.Path(bandoneon.__file__).parent
# Its types stand in a comment, as torch looks at a hook's annotations itself, and takes none but its own, unquoted.
WITHOUT = {"ddp_hook"}
CALLED_BY_LANGUAGE = {"__init__", "__call__", "__enter__", "__exit__"}

PROGRAM = """
import bandoneon
import bandoneon.torch as bdn
from torch import nn

worker = bdn.init(scheduler="127.0.0.1:7000")
rank: int = worker.rank
model = nn.Linear(4, 4)
links = bdn.Links(push="ef(onebit)", weight=lambda: 2.0, overrides={"*.bias": {"push": "none"}})
cluster = bandoneon.LocalCluster(workers=2)
results = cluster.run(lambda worker: worker.size)
bdn.broadcast_parameters(model, root=0)
codec: str = bandoneon.check_codec("ef(onebit)")
bdn.push_pull(next(model.parameters()), "a name", push=codec).wait(timeout=1.0)
declared: list[int] = worker.declare(bandoneon.calls.Declaration(name, 3) for name in "ab")
ended = worker.is_done(worker.push(declared[0], 4096))
step: int = 0 if ended is None else ended.step
optimizer = bdn.LocalSteps(None, model.named_parameters(), tau=4, outer=bdn.algorithms.Average())
optimizer.load_comm_state_dict([optimizer.comm_state_dict()])
with optimizer.common_weights():
    values = bdn.load("folder", {"model": model})
loss: float = values["loss"]
model.register_comm_hook(bdn.DDPState(model), bdn.ddp_hook)
page: str = bandoneon.metrics.text(worker)
bdn.shutdown(timeout=3.0)
"""
MISTAKES = {
    "bdn.init(scheduler=7000)": 'has incompatible type "int"',
    "bdn.shutdown(timeout='3s')": 'has incompatible type "str"',
    "number: str = bdn.rank()": "Incompatible types in assignment",
    "bandoneon.check_codec(b'none')": 'has incompatible type "bytes"',
    "bdn.Links(warmup='long')": 'has incompatible type "str"',
    "bdn.Links(warmups=1)": "Unexpected keyword argument",
    "bandoneon.LocalCluster(workers='two')": 'has incompatible type "str"',
    "done: bool = worker.is_done(7)": 'expression has type "Result | None"',
    "worker.set_step('first', 1)": 'has incompatible type "str"',
    "bdn.load('folder', {}) + 1": "Unsupported operand types",
    "bdn.algorithms.QSR(alpha=1.0, least=2, most=8).steps('first', 0.1)": 'has incompatible type "str"',
}


def methods_of(cls):
    """{name: function} of what a program may call of a class and of those of this package that it is made of. How
    one that is not public is constructed is for the package alone."""
    found = {}
    for base in reversed(cls.__mro__):
        for name, thing in vars(base).items() if base.__module__.startswith("bandoneon") else ():
            if name.startswith("_") and name not in CALLED_BY_LANGUAGE or (name == "__init__" and base is not cls):
                continue
            if isinstance(thing, property):
                thing = thing.fget
            thing = inspect.unwrap(getattr(thing, "__func__", thing))
            if inspect.isfunction(thing) and thing.__module__.startswith("bandoneon"):
                found[f"{cls.__name__}.{name}"] = thing
    return found


def public_functions():
    """[(name, function)] of the packages: functions, and the methods of classes."""
    found = methods_of(_Distributed)  # What DistributedOptimizer() returns is one of these.
    for module in (bandoneon, bandoneon.metrics, bdn, algorithms):
        for name in getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")]):
            thing = getattr(module, name)
            if name in WITHOUT or not getattr(thing, "__module__", "").startswith("bandoneon"):
                continue
            if inspect.isfunction(thing):
                found[name] = thing
            elif inspect.isclass(thing):
                found.update(methods_of(thing))
    return sorted(found.items())


@pytest.mark.parametrize("name, function", public_functions(), ids=lambda value: value if isinstance(value, str) else "")
def test_everything_public_says_what_it_takes_and_returns(name, function):
    hints = typing.get_type_hints(function) if sys.version_info >= (3, 10) else function.__annotations__
    parameters = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
    expected = set(parameters) | ({"return"} if not name.endswith(".__init__") else set())
    assert expected <= hints.keys()


def test_declarations_may_come_from_a_generator():
    def job(worker):
        names = ("a", "b")
        ids = worker.declare(bandoneon.calls.Declaration(name, 3) for name in names)
        assert [worker.declare_once(bandoneon.calls.Declaration(name, 3)) for name in names] == ids
        return len(ids)

    assert run_job(job) == [2, 2]


def test_a_state_is_taken_up_of_this_rank_or_of_all_as_its_type_says():
    def job(worker):
        model = make_model()
        optimizer = sgd(worker, model)
        own = optimizer.comm_state_dict()
        hint = typing.get_type_hints(type(optimizer).load_comm_state_dict)["state"]
        for state in (own, [own, own]):
            assert any(isinstance(state, typing.get_origin(kind)) for kind in typing.get_args(hint))
            optimizer.load_comm_state_dict(state)
        return True

    assert run_job(job) == [True, True]


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("typed")
    # torch itself, which is large, is taken for anything.
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nfollow_imports = silent\ncache_dir = cache\n"
        "[mypy-torch.*]\nfollow_imports = skip\nfollow_imports_for_stubs = True\n"
        "[mypy-torch]\nfollow_imports = skip\n")

    def run(*files):
        env = os.environ | {"MYPYPATH": str(PACKAGE.parent)}
        done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *map(str, files)], cwd=folder,
                              env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def check(program):
        (folder / "program.py").write_text(program)
        return run("program.py")

    check.run = run
    return check


def test_what_needs_no_torch_is_strictly_typed(check):
    """Of the rest everything public is; this is bandoneon.worker, bandoneon.session and what they stand on."""
    files = sorted(PACKAGE.glob("*.py"))
    assert {"worker.py", "session.py", "_native.py"} <= {file.name for file in files}
    code, said = check.run(*files)
    assert code == 0, said


def test_a_program_that_is_right_is_told_so(check):
    code, said = check(PROGRAM)
    assert code == 0, said


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(check, mistake):
    code, said = check(PROGRAM + mistake + "\n")
    assert code == 1 and MISTAKES[mistake] in said, said
