"""A job that stands still in the middle, so that its daemons can be looked at."""

import contextlib
import os
import re
import sys
import urllib.request

from process_helpers import BIN, Process

LIMIT = 30


def scrape(port):
    """The text of a daemon's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


@contextlib.contextmanager
def running_job(*arguments):
    """`bandoneon run ARGUMENTS`, which must end well after what is done with it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    job = Process("job", [str(BIN / "bandoneon"), "run", *arguments], env)
    try:
        yield job
        assert job.child.wait(LIMIT) == 0, job.output()
    finally:
        if job.child.poll() is None:
            job.child.terminate()
            job.child.wait(LIMIT)
        job.output()
        job.child.stdout.close()


@contextlib.contextmanager
def job_in_the_middle(folder, program, *options):
    """{daemon: the port of its metrics} of `bandoneon run OPTIONS`, once two programs have said "half way RANK".
    They get `folder`, and read go-RANK there; afterwards they may go on, and must end well."""
    for rank in range(2):
        os.mkfifo(folder / f"go-{rank}")
    with running_job(*options, "-s", "1", "--set", "metrics-listen=127.0.0.1:0", "--", sys.executable, "-c", program, str(folder)) as job:
        for rank in range(2):
            job.wait_for(f"half way {rank}", LIMIT)
        yield dict(re.findall(r"\[([\w ]+)\].*metrics at port (\d+)", "".join(job.lines)))
        for rank in range(2):
            (folder / f"go-{rank}").write_text("go on")
