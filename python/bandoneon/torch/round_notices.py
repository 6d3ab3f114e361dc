"""What a program is told of its rounds: warnings, each once, and errors."""

import re
import warnings

from ..errors import BandoneonError, FailedPrecondition, InvalidArgument

# The facts of an exchange come twice in such an error: from its worker, and from the server that refused it.
_SAID_TWICE = re.compile(r"(tensor '.*' step \d+)(?: \(exchange\)): server \d+: \1: ", re.DOTALL)
_WAITING_FOR_SERVER = re.compile(r"; waiting for server \d+$")
_OTHER_RATES = (
    ". All workers must step by one learning rate: let each of them step its schedulers alike, and give ReduceLROnPlateau a "
    "loss that all have, as the mean of theirs by push_pull()"
)


class Notices:
    """The warnings of one synchronizer, of which each comes once."""

    def __init__(self):
        self._given = set()

    def _warn(self, kind, text):
        if kind not in self._given:
            self._given.add(kind)
            warnings.warn(text, RuntimeWarning, stacklevel=3)

    def settled_early(self, why):
        self._warn(
            "settled early",
            f"overlap='forward' awaits gradients in the next forward pass, but {why}, so all were awaited "
            "there and then: such a step takes as long as with overlap='backward'",
        )

    def gradient_taken(self, slot):
        self._warn(
            "gradient taken",
            f"a hook has set the gradient of {slot.member.name!r} to None during backward(), so this worker has none "
            "to exchange and counts as one without it. If that hook takes steps, or keeps gradients elsewhere, they "
            "are this worker's own and the replicas will differ: do both after backward() instead",
        )

    def local_part(self):
        self._warn(
            "local part",
            "step() comes after a backward pass under no_sync() that none outside of it followed, so it steps by what is "
            "this worker's own in the gradients, as under DDP, and the replicas come apart: leave no_sync() before the "
            "last backward() of each step",
        )

    def local_sum_changed(self, passes, of_passes):
        self._warn(
            "local sum changed",
            f"gradients were changed, as by clip_grad_norm_() or a GradScaler, after {passes} of "
            f"backward_passes_per_step={of_passes} passes and before step(), which exchanges them only now: each worker has "
            "clipped its own sum by its own norm. Call optimizer.synchronize() before that where a step has fewer passes, as "
            "the last of an epoch; it does nothing in the others",
        )

    def replaced(self, slot):
        self._warn(
            "replaced",
            f"the gradient of {slot.member.name!r} was replaced after backward() had exchanged it, so step() exchanges what "
            "is there in its place, and every such gradient, once more: it may be of this worker's batch alone. What is "
            "made of the mean alone, as by clamp(), write to the gradient in place (param.grad.clamp_()), and what is of "
            "this worker's batch set before backward(): then there is one exchange a step",
        )

    def nonfinite(self, slot, size):
        self._warn(
            "nonfinite",
            f"the mean of the gradients of {slot.member.name!r} is NaN in all workers: either one of theirs was not "
            f"finite, or the sum of {size} workers overflowed though each was; "
            "links=Links(average='before') keeps the sum from that",
        )


def _first_of(slots):
    name = slots[0].member.name
    others = len(slots) - 1
    return name, f" and {others} other{'s' * (others > 1)}" if others else ""


def changed_in_flight(slots):
    name, others = _first_of(slots)
    return FailedPrecondition(
        f"the gradient of {name!r}{others} was changed, or replaced, during backward() after it had been accumulated "
        "and was on its way to the other workers, so the mean lacks that change. Change it in a hook of the "
        "parameter (register_post_accumulate_grad_hook), which runs before it leaves, or construct "
        "DistributedOptimizer(..., overlap=False), which sends gradients when the pass is over",
        tensor=name,
    )


def frozen_here_alone(slots):
    name, others = _first_of(slots)
    requires, one, it = ("require", "gradients of them", "them") if others else ("requires", "one of it", "it")
    return FailedPrecondition(
        f"{name!r}{others} {requires} no gradient in this worker, and another worker has {one}: that worker would step "
        f"{it} and this one would not. Freeze and thaw parameters (requires_grad) in all workers alike",
        tensor=name,
    )


def second_gradient(slot):
    return FailedPrecondition(
        f"{slot.member.name!r} got a second gradient in one backward pass after its first was "
        "on its way, as it never did before (reentrant checkpointing that comes and goes); "
        "construct DistributedOptimizer(..., overlap=False)",
        tensor=slot.member.name,
    )


def added_to_nobodys_mean(slot):
    return FailedPrecondition(
        f"a backward pass broke off when the gradient of {slot.member.name!r} was on its way, and this "
        "pass adds to it, where a mean lies by now that is nobody's; call optimizer.zero_grad() after a "
        "backward() that has failed",
        tensor=slot.member.name,
    )


def set_under_scaler(slots):
    name, others = _first_of(slots)
    return FailedPrecondition(
        f"the gradient of {name!r}{others} was set, or replaced, after backward() had exchanged gradients, and it may be "
        "unscaled by now, so step() cannot exchange it: set it before backward(), or call synchronize() behind it, before "
        "unscale_() and step(). What is made of the mean alone write to the gradient in place",
        tensor=name,
    )


def set_in_join(slots):
    name, others = _first_of(slots)
    return FailedPrecondition(
        f"the gradient of {name!r}{others} was set, or replaced, after backward() had exchanged gradients, and inside join() "
        "each step has one exchange: set it before backward(). What is made of the mean alone write to the gradient in "
        "place",
        tensor=name,
    )


def unscaled_by_now(passes, of_passes):
    return FailedPrecondition(
        f"step() came after {passes} of {of_passes} backward passes, and "
        "their gradients may be unscaled by now; call synchronize() before unscale_() and step()"
    )


def of_exchange(error):
    """The error of an exchange, which says once what it is about, and what to do."""
    if not isinstance(error, BandoneonError):
        return error
    text = _SAID_TWICE.sub(r"\1: ", str(error))
    if isinstance(error, InvalidArgument):  # It came from there: nothing is waited for.
        text = _WAITING_FOR_SERVER.sub("", text)
    if "has learning rate" in text and _OTHER_RATES not in text:
        text += _OTHER_RATES
    return _with_text(error, text)


def _with_text(error, text):
    facts = {fact: getattr(error, fact) for fact in ("code", "tensor", "step", "stage", "waiting_for")}
    return type(error)(text, **facts)


def after_given_up_step(error, given_up_at, steps_taken):
    """The error, or where none of this worker's steps has ended since a pass of it broke off, one that says so:
    the others may have taken that step."""
    if given_up_at != steps_taken or not isinstance(error, BandoneonError):
        return error
    return _with_text(
        error,
        f"{error}. In this worker backward() of step {given_up_at + 1} has failed, and the step was left out: "
        "after an error of backward() all workers leave the same step out, or the job goes on from a checkpoint",
    )
