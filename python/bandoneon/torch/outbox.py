"""The way of gradients out: what leaves of each, and when."""

import torch

from .. import _native
from . import devices
from .gradient_hooks import AS_IT_IS_THEN
from .loss_scale import overflow_as_half
from .round_states import SENT, SLOT_EVENTS
from .tensors import has_own_storage, memory_for, place

_IS_REFUSED = SLOT_EVENTS["its_push_is_refused"]


def zeros_for(slot):
    return torch.zeros_like(slot.param, requires_grad=False)


class Outbox:
    """Makes pushes of gradients. Used by the one synchronizer that has it."""

    def __init__(self, parameters, notices):
        self._parameters = parameters
        self._worker = parameters.worker
        self._notices = notices

    def send(self, slots, round):
        """Starts the exchanges of a batch. The error, or None; the slots at and behind it have not left then."""
        error = self._fill_pushes(slots, round)
        tickets, refused = self._worker.push_all([slot.push for slot in slots if slot.state is SENT])
        for slot, ticket in zip(slots, tickets):
            slot.ticket = ticket
        if refused is not None:
            _refuse(slots[len(tickets) :])
        return error or refused

    @torch.no_grad()
    def _fill_pushes(self, slots, round):
        """The error of the first that cannot be exchanged; it and those behind it are not sent then."""
        program_steps = self._parameters.step_count.program_steps
        done = 0
        try:
            for done, slot in enumerate(slots):
                self.take_gradient(slot, round)
                memory = None if slot.grad is None else memory_for(slot.grad)
                if memory is not slot.source and slot.source is not None:
                    trust_version(slot)
                slot.memory = memory
                push = slot.push
                push.keep = memory
                push.data = None if memory is None else memory.data_ptr()
                if devices.ARE_HERE:
                    place(push, memory)
                push.flags = slot.flags if round.weight else _native.ABSENT
                push.weight = round.weight
                push.loss_scale = round.scale
                push.learning_rate = round.rates.get(id(slot.param), 0.0)
                push.program_steps = program_steps
        except BaseException as error:
            _refuse(slots[done:])
            return error
        return None

    def take_gradient(self, slot, round):
        """What leaves of it, now that it does: in a hook of another gradient, whose stream may be another."""
        if slot.stream is not None:
            devices.follow(slot.param, slot.stream)
        if slot.grad is AS_IT_IS_THEN:
            slot.grad = None if round.is_given_up else slot.param.grad
            if slot.grad is None:
                self._take_none(slot, round)
        if slot.grad is None:
            return
        slot.source = slot.grad
        if slot.is_shard:
            slot.whole, slot.source = slot.grad, None  # Torch does not count what is written to its part.
        slot.grad = self._parameters.dense(slot.member, slot.grad)
        if round.travels_scaled and slot.member.options.clips_as_half:
            # Members of a local group add theirs up before they are sent.
            overflow_as_half(slot.grad, round.weight * (self._parameters.group_size or 1))
        if slot.source is None:
            return
        try:
            slot.version = slot.source._version
        except RuntimeError:  # Of inference tensors torch does not count what is written to them.
            slot.source = None

    def _take_none(self, slot, round):
        """Where hooks have taken the gradient away. There may be one elsewhere."""
        slot.flags = _native.ABSENT
        if not round.is_given_up:
            self._notices.gradient_taken(slot)
            slot.grad = zeros_for(slot)


def _refuse(slots):
    for slot in slots:
        if slot.state is SENT:
            slot.state = _IS_REFUSED[slot.state]


def trust_version(slot):
    """Not where the gradient's memory is part of a larger one, whose parts' writes torch counts together."""
    if slot.source is not None and not has_own_storage(slot.source):
        slot.version = None
