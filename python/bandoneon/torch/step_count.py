"""How many steps an optimizer has ended: each push says it, and one round is of one step in all workers."""

from . import any_optimizer


class StepCount:
    """Of one optimizer, since it was made. Servers fail a round whose pushes differ in it."""

    def __init__(self, worker):
        self._worker = worker
        self.ended = 0

    def follow(self, optimizer):
        """Counts what step() of this optimizer ends."""
        optimizer.register_step_post_hook(lambda *_: self.end_step())

    def end_step(self):
        self.ended += 1
        self._worker.end_step()

    @property
    def program_steps(self):
        """As Push has it."""
        return program_steps(self.ended)


class SteppedRounds:
    """Where it is not known which optimizer steps: how many rounds of these parameters some optimizer of torch's
    has stepped after. However many do, and whoever holds which of the parameters: all workers' rounds are
    stepped on, or none's."""

    def __init__(self, params, recorder=None, steps=None):
        """recorder: the StepRecorder that is to note those steps; steps: a function for the number of rounds."""
        self._ids = {id(param) for param in params}
        self._ended = 0
        self._has_stepped = False
        self._is_known = True
        self._recorder = recorder
        self._steps = steps
        any_optimizer.follow(self)

    def before_any_step(self, optimizer):
        if self._recorder is not None and self._has_part_of(optimizer):
            self._recorder.begin_optimizer()

    def after_any_step(self, optimizer):
        if self._recorder is None and self._has_stepped or not self._has_part_of(optimizer):
            return
        self._has_stepped = True
        if self._recorder is not None:
            self._recorder.end_optimizer(optimizer, self._steps)

    def begin_round(self):
        """The count as Push has it, 0 where it is not known."""
        if self._has_stepped:
            self._ended += 1
        self._has_stepped = False
        return program_steps(self._ended) if self._is_known else 0

    def lose_count(self):
        """This worker has taken part in rounds of others, and does not know what they made of them."""
        self._is_known = False

    def close(self):
        any_optimizer.leave(self)

    def _has_part_of(self, optimizer):
        return any(not self._ids.isdisjoint(map(id, group["params"])) for group in optimizer.param_groups)


def program_steps(ended):
    """As Push has it: 0 is kept for what is not known."""
    return 1 + ended % (2**32 - 1)
