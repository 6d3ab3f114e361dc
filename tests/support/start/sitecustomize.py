"""Run by every Python that a test starts, as tests/conftest.py puts this folder on PYTHONPATH. torch imports its compiler
for the first optimizer, which takes as long as all else that torch imports, and most tests compile nothing: here the
first torch.compile() imports it."""

import functools
import importlib.machinery
import sys

_MODULE = "torch.optim.optimizer"


class _Patient(importlib.machinery.PathFinder):
    """A finder of that module alone."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(cls)
        spec = super().find_spec(name, path, target)
        execute = spec.loader.exec_module

        def execute_and_patch(module):
            execute(module)
            _keep_the_compiler_away(module)

        spec.loader.exec_module = execute_and_patch
        return spec


def _keep_the_compiler_away(module):
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


sys.meta_path.insert(0, _Patient)
