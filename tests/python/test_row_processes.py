"""Tables on real daemons: the example, and a server that is lost."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time

from test_processes import BIN, ROOT

EXAMPLE = ROOT / "examples" / "click_model.py"


def run(*options, workers=2, servers=1):
    command = [BIN / "bandoneon", "run", "-n", workers, "-s", servers, "--", sys.executable, EXAMPLE]
    done = subprocess.run(
        list(map(str, [*command, *options])), capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_click_model_is_the_same_on_any_number_of_servers():
    options = ("--steps=5", "--batch=64", "--push=int8", "--pull=int8", "--no-compare")
    first, second = run(*options), run(*options, servers=3)
    rows = [re.findall(r"^rows ([0-9a-f]{16})$", output, re.MULTILINE) for output in (first, second)]
    assert rows[0] == rows[1] and len(rows[0]) == 1
    areas = [float(area) for area in re.findall(r"AUC (\S+)", first)]
    assert len(areas) == 1 and 0.3 < areas[0] < 0.9
    assert len(re.findall(r"worker \d sent \d+ bytes and got \d+", first)) == 2


def servers_of(pid):
    """The numbers of the servers among the children of a process."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            name = (entry / "cmdline").read_bytes().split(b"\0")[0]
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if parent == pid and name.endswith(b"bandoneon-server"):
            found.append(int(entry.name))
    return found


def test_with_a_server_rows_are_lost_and_the_job_says_so(tmp_path):
    marker = tmp_path / "stepping"
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch\nimport bandoneon.torch as bdn\nfrom bandoneon.torch import rows\n"
        "bdn.init()\n"
        "table = rows.Embedding(1000, 4)\n"
        "optimizer = rows.RowOptimizer(table, lr=0.1)\n"
        "for step in range(10**9):\n"
        "    optimizer.zero_grad()\n"
        "    table(torch.arange(100)).sum().backward()\n"
        "    optimizer.step()\n"
        f"    if step == 5 and bdn.rank() == 0: open({str(marker)!r}, 'w').close()\n"
    )
    command = [BIN / "bandoneon", "run", "-n", 2, "-s", 2, "--", sys.executable, program]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        deadline = time.monotonic() + 60
        while not marker.exists() and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        servers = servers_of(job.pid)
        assert len(servers) == 2, servers
        os.kill(servers[0], signal.SIGKILL)
        output, _ = job.communicate(timeout=90)
    assert job.returncode != 0
    assert re.search(r"table 'rows': the server that held bucket \d+ of \d+ is lost", output), output
