"""Run by every Python that a test starts, as tests/conftest.py puts this folder on PYTHONPATH. Most of what a short
program takes is torch's import and what follows from it, so here two things are otherwise:

  - torch imports its compiler for the first optimizer, which takes as long as all else that it imports, and most tests
    compile nothing: the first torch.compile() imports it.
  - The garbage collector does not run while torch is imported, and leaves what was imported alone afterwards: walks over
    some hundred thousand objects that live until the end, most of them at the end, were a third of a short program's
    time. Objects of the program are collected as ever."""

import functools
import gc
import importlib.machinery
import sys


class _Patient(importlib.machinery.PathFinder):
    """A finder of the modules in `around`, each of which has a function that is called with the module's execution."""

    around = {}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.around:
            return None
        call = cls.around.pop(name)
        if not cls.around:
            sys.meta_path.remove(cls)
        spec = super().find_spec(name, path, target)
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: call(execute, module)
        return spec


def _import_without_collections(execute, module):
    gc.disable()
    try:
        execute(module)
        gc.freeze()
    finally:
        gc.enable()


def _keep_the_compiler_away(execute, module):
    execute(module)
    import torch

    for method in vars(module.Optimizer).values():
        file = getattr(getattr(method, "__code__", None), "co_filename", "")
        function = getattr(method, "__wrapped__", None)
        if function is not None and file.endswith("_compile.py"):
            # Where torch._disable_dynamo() keeps what the compiler made of the function at its first call.
            setattr(function, "__dynamo_disable", function)
    of_torch = module._use_grad_for_differentiable

    def use_grad_for_differentiable(step):
        with_compiler = of_torch(step)

        @functools.wraps(with_compiler)
        def step_of_optimizer(self, *positional, **named):
            if "torch._dynamo" in sys.modules:
                return with_compiler(self, *positional, **named)
            with torch.set_grad_enabled(self.defaults["differentiable"]):
                return step(self, *positional, **named)

        return step_of_optimizer

    module._use_grad_for_differentiable = use_grad_for_differentiable


_Patient.around = {"torch": _import_without_collections, "torch.optim.optimizer": _keep_the_compiler_away}
sys.meta_path.insert(0, _Patient)
