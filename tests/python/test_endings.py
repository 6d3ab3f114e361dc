"""How a worker's program ends decides what the others hear: only exit status 0 is leaving."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "release" / "bin"
PROGRAM = pathlib.Path(__file__).parent / "ending_program.py"
LEAVES = "worker 1 is leaving the job and pushes no more"


class Job:
    """A scheduler and a server by hand, whose exit codes and logs are seen, and whoever starts the workers."""

    def __init__(self, directory):
        self.directory = directory
        self.daemons = {}
        port_file = directory / "port"
        self._start("scheduler", "--workers=2", "--servers=1", f"--port-file={port_file}", "--lease-timeout=2s")
        deadline = time.monotonic() + 30
        while not port_file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)  # There is no event to wait for: the file appears.
        self.address = f"127.0.0.1:{port_file.read_text().strip()}"
        self._start("server", f"--scheduler={self.address}")

    def _start(self, role, *flags):
        log = open(self.directory / role, "w")
        self.daemons[role] = subprocess.Popen([str(BIN / f"bandoneon-{role}"), *flags], stderr=log)

    def run(self, how, method=""):
        """(exit code of rank 1, what the workers printed)"""
        environment = {**os.environ, "BANDONEON_SCHEDULER": self.address}
        workers = [None] if method else ["0", "1"]
        started = []
        for rank in workers:
            if rank is not None:
                environment.update(BANDONEON_RANK=rank, RANK=rank)
            started.append(subprocess.Popen([sys.executable, str(PROGRAM), str(self.directory), how, method], text=True,
                                            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        printed = [process.communicate(timeout=60)[0] for process in started]
        return started[-1].returncode, "".join(printed)

    def end(self):
        """{role: (exit code, log)} of daemons that end by themselves."""
        return {role: (daemon.wait(timeout=30), (self.directory / role).read_text())
                for role, daemon in self.daemons.items()}

    def close(self):
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()


@pytest.fixture
def job(tmp_path):
    made = Job(tmp_path)
    yield made
    made.close()


FAILURES = {
    "sys.exit(3)": (3, "its program ended with exit status 3"),
    "raise SystemExit(4)": (4, "its program ended with exit status 4"),
    "sys.exit('the data is bad')": (1, "SystemExit: the data is bad (exit status 1)"),
    "exit(5)": (5, "its program ended with exit status 5"),
    "framework(1)": (1, "ValueError: the data is bad (exit status 1)"),
    "raise ValueError('the data is bad')": (1, "ValueError: the data is bad (exit status 1)"),
    "raise KeyboardInterrupt": (-2, "KeyboardInterrupt"),
    "console('1 / 0'); sys.exit(1)": (1, "ZeroDivisionError: division by zero (exit status 1)"),
    "in_a_thread(worker)": (0, "its thread 'trainer', which trained, had ended with ValueError: the data is bad"),
    "os._exit(6)": (6, "stopped answering"),
    "os._exit(0)": (0, "stopped answering"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_any_other_status_than_0_ends_the_job_with_its_cause_in_all_logs(job, how):
    status, cause = FAILURES[how]
    code, printed = job.run(how)
    assert code == status, printed
    heard = (job.directory / "heard").read_text()
    for role, (ended, log) in job.end().items():
        assert ended == 1, (role, log)
        assert "worker 1" in log and cause in log, (role, log)
    assert "worker 1" in heard and cause in heard and "worker 0" not in heard.partition(cause)[0]


@pytest.mark.parametrize("how", ["sys.exit()", "sys.exit(0)", "framework(0)", "console('1 / 0')", "pass",
                                 "in_a_thread(worker, ends_well_later=True)"])
def test_status_0_leaves(job, how):
    code, printed = job.run(how)
    assert code == 0, printed
    assert LEAVES in (job.directory / "heard").read_text()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_child_of_multiprocessing_that_returns_leaves(tmp_path, method):
    # Without an exchange that one of them misses: both end well, and so does the job.
    job = Job(tmp_path)
    try:
        code, printed = job.run("exchange()", method)
        assert code == 0, printed
        assert {role: ended for role, (ended, _) in job.end().items()} == {"scheduler": 0, "server": 0}
        assert not (tmp_path / "heard").exists()
    finally:
        job.close()


@pytest.mark.parametrize("method, how, cause", [
    ("torch", "raise ValueError('the data is bad')", "ValueError: the data is bad (exit status 1)"),
    ("fork", "raise ValueError('the data is bad')", "ValueError: the data is bad (exit status 1)"),
    ("fork", "framework(2)", "ValueError: the data is bad (exit status 2)"),
    ("fork", "os._exit(7)", "stopped answering"),
])
def test_a_child_of_multiprocessing_that_fails_ends_the_job_with_its_cause(job, method, how, cause):
    code, printed = job.run(how, method)
    assert code != 0
    for role, (ended, log) in job.end().items():
        assert ended == 1 and "worker 1" in log and cause in log, (role, log)
