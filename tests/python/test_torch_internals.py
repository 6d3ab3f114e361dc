"""What is used of torch and CPython that they do not promise: in one file, there, and refused by name where it is not."""

import importlib.util
import pathlib
import pkgutil
import re
import subprocess
import sys
import threading

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import bandoneon
from bandoneon.torch import torch_internals

FILE = pathlib.Path(torch_internals.__file__)
PACKAGE = FILE.parent.parent
INTERNALS = re.compile(r"\b_getframe|\bget_objects|torch\._C\b|_execution_engine|BackwardCFunction|_global_optimizer_")


def test_nothing_else_uses_them():
    found = {
        str(file.relative_to(PACKAGE)): INTERNALS.findall(file.read_text(encoding="utf-8"))
        for file in sorted(PACKAGE.rglob("*.py"))
        if file != FILE
    }
    assert {name: uses for name, uses in found.items() if uses} == {}
    assert len(INTERNALS.findall(FILE.read_text(encoding="utf-8"))) >= 10


def imported_anew():
    spec = importlib.util.spec_from_file_location("bandoneon.torch.imported_anew", FILE)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize("place", torch_internals._NEEDED)
def test_a_torch_that_lacks_one_is_refused_by_name(monkeypatch, place):
    imported_anew()
    module, path = place.split(":")
    # What a class of C, or every function, has cannot be taken away: there it is its owner that goes.
    owner, _, name = re.sub(r"\.(queue_callback|__code__)$", "", path).rpartition(".")
    monkeypatch.delattr(pkgutil.resolve_name(f"{module}:{owner}"), name)
    said = re.escape(f"has no {place.replace(':', '.')}, and bandoneon.torch {torch_internals._NEEDED[place]}: install")
    with pytest.raises(bandoneon.Unimplemented, match=said):
        imported_anew()


# ---- That those that are there do what they are used for ----


def test_a_pass_has_a_number_of_its_own_on_its_thread_alone():
    seen = []
    param = torch.ones(3, requires_grad=True)
    param.register_hook(lambda _: seen.append(torch_internals.current_task()))
    elsewhere = []

    def ask(_):
        thread = threading.Thread(target=lambda: elsewhere.append(torch_internals.current_task()))
        thread.start()
        thread.join()

    param.register_hook(ask)
    for _ in range(2):
        param.sum().backward()
    assert torch_internals.current_task() == -1
    assert elsewhere == [-1, -1]
    assert -1 not in seen and len(set(seen)) == 2


def test_the_outermost_node_is_seen_from_a_pass_inside_of_it_alone():
    plain, inside = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    seen = {}
    plain.register_hook(lambda _: seen.update(plain=torch_internals.outermost_node()))
    inside.register_hook(lambda _: seen.update(inside=torch_internals.outermost_node()))
    kept = checkpoint(lambda x: x * inside, plain * 1.0, use_reentrant=True)
    node = kept.grad_fn
    kept.sum().backward()
    assert seen == {"plain": None, "inside": node}


def test_what_is_queued_ends_the_pass_and_what_it_raises_comes_out_of_backward():
    param = torch.ones(3, requires_grad=True)
    said = []

    def queue(_):
        torch_internals.queue_callback(lambda: said.append(param.grad is not None))

    handle = param.register_hook(queue)
    param.sum().backward()
    assert said == [True]
    handle.remove()

    def fail():
        raise ArithmeticError("at the end")

    param.register_hook(lambda _: torch_internals.queue_callback(fail))
    with pytest.raises(ArithmeticError, match="at the end"):
        param.sum().backward()


def test_a_method_that_asks_is_known():
    class Asker:
        def ask(self, thing):
            return thing.who

    class Asked:
        @property
        def who(self):
            return torch_internals.self_of_caller()

    asker = Asker()
    assert asker.ask(Asked()) is asker
    assert (lambda thing: thing.who)(Asked()) is None


def test_live_objects_are_found_without_asking_what_they_pretend_to_be():
    class Kind:
        pass

    class Pretends:
        @property
        def __class__(self):
            raise AssertionError("asked")

    kept = [Kind(), Pretends()]
    assert torch_internals.live_objects(Kind) == kept[:1]


def test_the_compiler_of_torch_is_imported_by_a_program_that_compiles_alone():
    # Its import takes as long as that of all of torch.
    code = "import sys, bandoneon.torch, bandoneon.graph; print([name for name in ('torch._dynamo', 'sympy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_hooks_of_all_optimizers_are_in_the_dicts_that_are_looked_at():
    before = register_optimizer_step_pre_hook(lambda *_: None)
    after = register_optimizer_step_post_hook(lambda *_: None)
    try:
        assert before.id in torch_internals.hooks_before_any_step
        assert after.id in torch_internals.hooks_after_any_step
    finally:
        before.remove()
        after.remove()
