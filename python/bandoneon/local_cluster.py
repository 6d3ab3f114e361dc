"""A whole job in this process."""

from __future__ import annotations

import contextlib
import os
import threading
from ctypes import byref, c_void_p
from typing import Any, Callable

from . import _native, errors
from .interrupts import SLICE_SECONDS
from .worker import Worker


class LocalCluster:
    """A scheduler, servers and workers in this process, over a loopback: for tests and experiments.

    cluster = LocalCluster(workers=2, servers=1, seed=7)
    results = cluster.run(lambda worker: train(worker))
    """

    def __init__(self, workers: int, servers: int = 1, seed: int = 0, **settings: Any) -> None:
        self._pid = os.getpid()
        self._lib = _native.library()
        self._handle = c_void_p()
        self.workers = workers
        pointer = c_void_p()
        facts = _native.options(dict(workers=workers, servers=servers, seed=seed, **settings))
        _native.check(self._lib.bdn_local_cluster_create(byref(facts), byref(pointer)))
        self._handle = pointer

    def worker(self, rank: int | None = None, **settings: Any) -> Worker:
        """Joins as one worker; waits until all have, so call it from one thread each."""
        facts = _native.options(dict(rank=rank, **settings))
        return Worker(lambda out: self._lib.bdn_create_local(self._handle, byref(facts), out))

    def run(self, function: Callable[[Worker], Any], **settings: Any) -> list[Any]:
        """[function(worker of rank 0), function(worker of rank 1), ...], each on a thread of its own.

        The first failure ends the job and is raised here; so does Ctrl-C.
        """
        results: list[Any] = [None] * self.workers
        failures: list[BaseException] = []
        interruptions: list[BaseException] = []
        running: list[Worker] = []
        begun, ended = threading.Lock(), threading.Event()

        def run_rank(rank: int) -> None:
            try:
                with self.worker(rank, **settings) as worker:
                    running.append(worker)
                    try:
                        if interruptions:
                            raise interruptions[0]
                        results[rank] = function(worker)
                    except BaseException as error:
                        failures.append(error)  # Before its end of the job makes the others fail.
                        raise
            except BaseException as error:
                failures.append(error)

        def run_all() -> None:
            """On a thread of its own: Ctrl-C strikes the main thread alone, and may do so anywhere in
            Thread.start and Thread.join, which then do not know any more what has started or ended."""
            if begun.acquire(blocking=False):
                threads = []
                try:
                    for rank in range(self.workers):
                        threads.append(threading.Thread(target=run_rank, args=(rank,), name=f"bandoneon-rank-{rank}"))
                        threads[-1].start()
                except RuntimeError as error:  # No more threads; those that run wait for them in vain.
                    failures.append(error)
                    threads.pop()
                for thread in threads:
                    thread.join()
                ended.set()

        while not ended.is_set():
            try:
                if not begun.locked():
                    threading.Thread(target=run_all).start()
                # A signal that comes just before a wait does not end it.
                ended.wait(SLICE_SECONDS)
            except BaseException as interruption:
                # No thread may outlive the cluster: those that run end with their job.
                interruptions.append(interruption)
                for worker in list(running):
                    with contextlib.suppress(errors.BandoneonError):
                        worker.abort_job(repr(interruption))
        if interruptions:
            raise interruptions[0]
        if failures:
            raise failures[0]
        return results

    def close(self) -> None:
        """Ends the cluster, once the last of its workers is closed."""
        if os.getpid() == self._pid and self._handle:
            handle, self._handle = self._handle, c_void_p()
            self._lib.bdn_local_cluster_free(handle)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
