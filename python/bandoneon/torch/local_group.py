"""local_group=: the processes of a host add up their gradients by torch.distributed, and each exchanges its
own slice of the sums with the servers. Here is the group; sliced_parameters.py has what is declared, and
local_group_synchronizer.py the rounds."""

import contextlib
import datetime
import pathlib
import socket
import weakref
import zlib

import torch
import torch.distributed as dist

from ..errors import BandoneonError, DeadlineExceeded, InvalidArgument, JobFailed
from .broadcast import agree
from .step_recorder import recorder_of

# How long the job is asked who is gone, after a call among the processes has failed.
_ASK_SECONDS = 30.0

_in_use = weakref.WeakKeyDictionary()  # group -> weak reference to the LocalGroup that it is of


class LocalGroup:
    """A torch.distributed group of workers of one host, with ranks of the job that follow one another. All
    workers of the job are in one, and all of them are of one size. Constructing it is collective."""

    def __init__(self, group, worker, prefix="", timeout=None):
        """InvalidArgument in all workers where a group of one of them is not that."""
        if worker is not worker.whole:
            raise InvalidArgument(
                "local_group= with a group of ranks as worker=: local groups divide all workers of the job; leave one of them out"
            )
        self._worker = worker
        self._prefix = prefix
        self._timeout = timeout
        error = _not_a_group(group) or _shared(group)
        self._agree("size", 0 if error else dist.get_world_size(group), error)
        self._group = group
        self.size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)  # within the group
        self.first = worker.rank - self.rank  # the rank in the job of its first
        self._backend = dist.get_backend(group)
        self._agree("place", 0, self._misplaced())
        _in_use[group] = weakref.ref(self)

    def _agree(self, what, number, error):
        """All raise where one has an error, or another number than worker 0."""

        def difference(worker, mine, theirs, root):
            if error is not None or mine == theirs or not theirs[0]:
                return error
            return InvalidArgument(
                f"worker {worker.rank} is in a local_group of {mine[0]} workers and worker {root} in one of "
                f"{theirs[0]}; all groups must be of one size"
            )

        agree(self._worker, f"local_group/{what}", [number], 0, difference)

    def device_of(self, param, name):
        """Where this group can exchange it."""
        if self._backend == "gloo":
            return torch.device("cpu")
        if self._backend == "nccl" and not param.is_cuda:
            raise InvalidArgument(
                f"{name!r} is on {param.device}, and local_group is by nccl; make the group with "
                "torch.distributed.new_group(ranks, backend='gloo')",
                tensor=name,
            )
        return param.device

    def scatter(self, out, values, values_by_member):
        """Sends each member its part of `values`, of so many elements each; `out` gets what they sent to this
        one, in the order of their ranks. Returns what wait() takes."""
        own = [values_by_member[self.rank]] * self.size
        return self._begin(dist.all_to_all_single, out, values, own, values_by_member)

    def gather(self, out, values):
        """`out`, [size, n], gets the `values`, [n], of all members."""
        return self._begin(dist.all_gather, list(out.unbind(0)), values)

    def any(self, flag):
        """Whether it is true in any member."""
        mine = torch.tensor([int(flag)], dtype=torch.int64, device="cuda" if self._backend == "nccl" else "cpu")
        every = torch.empty(self.size, 1, dtype=mine.dtype, device=mine.device)
        self.wait(self.gather(every, mine))
        return bool(every.any())

    def broadcast(self, tensors, root):
        """The tensors of its member `root`, a rank within the group, become those of all members."""
        for tensor in tensors:
            # Where the group can exchange it, contiguous: often the tensor's own memory.
            place = tensor.detach().to("cpu" if self._backend == "gloo" else tensor.device).contiguous()
            self.wait(self._begin(dist.broadcast, place, dist.get_global_rank(self._group, root)))
            tensor.copy_(place)

    def check_same_steps(self, counts, name):
        """InvalidArgument, which all members raise and the job fails with, where two of them have ended other
        counts of steps."""
        other = next((member for member, count in enumerate(counts) if count != counts[0]), None)
        if other is None:
            return
        error = InvalidArgument(
            f"tensor {name!r}: rank {self.first} exchanged it after {counts[0]:.0f} steps of its program and rank "
            f"{self.first + other} after {counts[other]:.0f}, so their mean would be over different steps. Usually one "
            "rank has caught an error of backward() and gone on, has left out a batch or a step (continue), or has "
            "run a backward pass more: let all ranks make the same passes and steps, and start again from a checkpoint",
            tensor=name,
        )
        with contextlib.suppress(BandoneonError):
            self._worker.abort_job(str(error))
        raise error

    def wait(self, work):
        """JobFailed says who is gone, as far as the job knows it; DeadlineExceeded, where nobody is."""
        recorder = None if work.is_completed() else recorder_of(self._worker)
        begun = None if recorder is None else recorder.begin_wait()
        try:
            if self._timeout is None:
                work.wait()
            else:
                work.wait(datetime.timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise self._failure(error) from error
        finally:
            if recorder is not None:
                recorder.end_wait(begun)

    def _begin(self, call, *arguments):
        try:
            return call(*arguments, group=self._group, async_op=True)
        except RuntimeError as error:
            raise self._failure(error) from error

    def _failure(self, error):
        what = f"the exchange among workers {self.first} to {self.first + self.size - 1}, one local_group,"
        seconds = _ASK_SECONDS if self._timeout is None else min(self._timeout, _ASK_SECONDS)
        try:
            self._worker.barrier(f"{self._prefix}local_group has failed", seconds)
        except DeadlineExceeded:
            if "timed out" in str(error).lower():
                return DeadlineExceeded(
                    f"{what} took longer than {self._timeout} seconds: one of them does not come to it"
                )
        except BandoneonError as culprit:
            return JobFailed(f"{what} failed: {culprit} (torch.distributed says: {error})")
        return JobFailed(f"{what} failed, and all of them live: {error}")

    def _misplaced(self):
        """What is wrong with where its members are, or None."""
        worker = self._worker
        device = "cuda" if self._backend == "nccl" else "cpu"
        own = torch.tensor([worker.rank, worker.size, _host()], dtype=torch.int64, device=device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(every, own, group=self._group)
        ranks, sizes, hosts = torch.stack(every).T.tolist()
        if len(set(sizes)) > 1:
            return InvalidArgument(f"the members of local_group are in jobs of {sizes} workers")
        if ranks != list(range(ranks[0], ranks[0] + self.size)):
            return InvalidArgument(
                f"the members of local_group are workers {ranks}, in this order; give it workers whose "
                "ranks follow one another: torch.distributed.new_group(range(first, first + n))"
            )
        if len(set(hosts)) > 1:
            return InvalidArgument(
                f"the members of local_group, workers {ranks}, are on {len(set(hosts))} hosts; make a "
                "group of the processes of each host"
            )
        if worker.size % self.size or ranks[0] % self.size:
            return InvalidArgument(
                f"local_group has {self.size} workers from rank {ranks[0]} on, of {worker.size} in the job; "
                "all groups must be of one size, so give each host as many processes"
            )
        return None

    def release(self):
        """Frees the group for another one."""
        _in_use.pop(self._group, None)


def _not_a_group(group):
    if not (dist.is_available() and dist.is_initialized()):
        return InvalidArgument("local_group needs torch.distributed.init_process_group() before")
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return InvalidArgument(
            "this process is not in the group that it gave as local_group; each gives that of its own host"
        )
    if not isinstance(group, dist.ProcessGroup):
        return InvalidArgument(
            f"local_group={group!r} is not a group of processes; give it what "
            "torch.distributed.new_group(ranks of this host) has returned"
        )
    return None


def _shared(group):
    holder = _in_use.get(group)
    if holder is None or holder() is None:
        return None
    return InvalidArgument(
        "local_group is used by another optimizer, and their calls would meet each other's; give "
        "each a group of its own, of torch.distributed.new_group(ranks), or close() the other"
    )


def _host():
    """A number that the processes of one host have in common, and no others, containers or not."""
    path = pathlib.Path("/proc/sys/kernel/random/boot_id")
    try:
        return zlib.crc32(path.read_bytes())
    except OSError:
        return zlib.crc32(socket.gethostname().encode())
