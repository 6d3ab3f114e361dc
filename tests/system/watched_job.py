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
def job_in_the_middle(folder, program, *options):
    """{daemon: the port of its metrics} of `bandoneon run OPTIONS`, once two programs have said "half way RANK".
    They get `folder`, and read go-RANK there; afterwards they may go on, and must end well."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    for rank in range(2):
        os.mkfifo(folder / f"go-{rank}")
    job = Process("job", [str(BIN / "bandoneon"), "run", *options, "-s", "1", "--set", "metrics-listen=127.0.0.1:0",
                          "--", sys.executable, "-c", program, str(folder)], env)
    try:
        for rank in range(2):
            job.wait_for(f"half way {rank}", LIMIT)
        yield dict(re.findall(r"\[([\w ]+)\].*metrics at port (\d+)", "".join(job.lines)))
        for rank in range(2):
            (folder / f"go-{rank}").write_text("go on")
        assert job.child.wait(LIMIT) == 0, job.output()
    finally:
        if job.child.poll() is None:
            job.child.terminate()
            job.child.wait(LIMIT)
        job.output()
        job.child.stdout.close()
