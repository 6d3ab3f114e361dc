"""Who still has batches."""

from ..calls import Declaration
from .tensors import host_values


class Attendance:
    """Beside every round's gradients each worker says whether it made them, so that those who have run out
    of batches know whether there is a round. Collective."""

    def __init__(self, worker, name, owner, timeout=None):
        """owner: as Worker.declare's."""
        self._worker = worker
        self._timeout = timeout
        self._tensor = worker.declare_once(Declaration(name, 1), owner=owner)
        self._ticket = None
        self._share = None  # what was said, and then the mean of it

    def tell_present(self):
        """Once a round, when it begins: the others wait for it. settle() must follow."""
        if self._ticket is None:
            self._tell(1.0)

    def settle(self):
        """At the round's end."""
        if self._ticket is not None:
            self._worker.wait(self._ticket, self._timeout)
            self._ticket = None

    def anyone_present(self):
        """Says that this worker is not; waits until the others begin a round, or none will."""
        if self._ticket is None:
            self._tell(0.0)
        self.settle()
        return self._share.item() > 0

    def _tell(self, value):
        self._share = host_values([value])
        self._ticket = self._worker.push(self._tensor, self._share.data_ptr(), keep=self._share)
