"""Where in autograd's backward pass we are.

A pass is one call of backward(). Reentrant checkpointing calls backward() inside a node of the pass:
that inner pass has its own end, but gradients are complete only at the end of the outermost one.
"""

import torch

from .torch_internals import current_task, outermost_node, queue_callback

__all__ = [
    "at_end_of_pass", "before_accumulation", "current_task", "outermost_node", "remove", "when_pass_resumes_after"
]


def at_end_of_pass(callback):
    """Runs it as the last action of the pass on this thread, after those that were here before; what it
    raises comes out of backward(). One of them may add another."""
    queue_callback(callback)


def when_pass_resumes_after(node, callback):
    """Runs it once in the pass that `node` belongs to, when node is done."""
    hooks = []

    def reached(_):
        if hooks:
            remove(hooks)
            callback()

    hooks += [n.register_prehook(reached) for n, _ in node.next_functions if n is not None]


def before_accumulation(param, callback):
    """For a hook of the parameter itself: runs it before the gradient that has come is added to
    param.grad; not at all where torch.autograd.grad() only hands it out. Returns hooks, to be removed
    before the next gradient's: what adds is another node after model.cuda(), say. Takes long."""
    with torch.enable_grad():
        accumulator = param.view_as(param).grad_fn.next_functions[0][0]
    return [accumulator.register_prehook(lambda _: callback())]


def remove(hooks):
    """All of a list, which is empty then."""
    while hooks:
        hooks.pop().remove()

