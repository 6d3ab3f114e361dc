"""Daemons of a job that runs, scraped over sockets."""

import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from process_helpers import BIN, ROOT, Process
from watched_job import LIMIT, job_in_the_middle, scrape


# Trains a little, tells its own numbers, and goes on once somebody writes to its FIFO.
PROGRAM = """
import ctypes, sys
import bandoneon
from bandoneon.calls import Declaration
assert bandoneon.metrics.text() == ""
with bandoneon.init() as worker:
    n = 100_000
    data = (ctypes.c_float * n)()
    (tensor,) = worker.declare([Declaration("w", n, push="onebit", pull="onebit")])
    for _ in range(3):
        worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
    with open(sys.argv[1] + "/text-" + str(worker.rank), "w") as file:
        file.write(bandoneon.metrics.text())
    print("half way", worker.rank, flush=True)
    open(sys.argv[1] + "/go-" + str(worker.rank)).read()
"""
SAMPLE = re.compile(r"^([a-z_:]+)(?:\{(.*)\})? (\S+)$")


def read(text):
    """{(name, labels as they are written): value}"""
    return {(m[1], m[2] or ""): float(m[3]) for m in map(SAMPLE.match, text.splitlines()) if m}


def check_lint(text):
    if shutil.which("promtool"):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr
    kinds = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    helps = re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)
    assert sorted(kinds) == sorted(helps) == sorted(set(helps))
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """{process: its text}, of a job in the middle; of the daemons by name, of programs "text-RANK"."""
    folder = tmp_path_factory.mktemp("metrics")
    options = ["--hosts", "2", "--procs-per-host", "1", "--set", "min-compress-bytes=0"]
    with job_in_the_middle(folder, PROGRAM, *options) as ports:
        return {name: scrape(port) for name, port in ports.items()} | {path.name: path.read_text() for path in folder.glob("text-*")}


def test_every_daemon_is_there_and_promtool_has_nothing_to_say(scraped):
    assert set(scraped) == {"scheduler", "server 0", "host 0", "host 1", "text-0", "text-1"}
    for text in scraped.values():
        check_lint(text)
    for name, role in (("scheduler", "scheduler"), ("server 0", "server"), ("host 0", "worker")):
        assert re.search(rf'^bandoneon_build_info{{version="[\d.]+",role="{role}"}} 1$', scraped[name], re.MULTILINE)
        assert read(scraped[name])["process_resident_memory_bytes", ""] > 1e6


def test_the_scheduler_tells_of_the_job(scraped):
    now = read(scraped["scheduler"])
    assert {state: now["bandoneon_scheduler_job_state", f'state="{state}"'] for state in ("waiting", "running", "failed", "done")} == {
        "waiting": 0, "running": 1, "failed": 0, "done": 0}
    assert now["bandoneon_scheduler_nodes", 'role="worker"'] == now["bandoneon_scheduler_nodes_expected", 'role="worker"'] == 2
    ages = {labels: value for (name, labels), value in now.items() if name == "bandoneon_scheduler_lease_age_seconds"}
    assert set(ages) == {'node="server 0"', 'node="worker 0"', 'node="worker 1"'}
    assert all(0 <= age < now["bandoneon_scheduler_lease_timeout_seconds", ""] for age in ages.values())
    assert now["bandoneon_scheduler_tensors", ""] == 1


def test_the_server_tells_of_rounds_bytes_and_memory(scraped):
    now = read(scraped["server 0"])
    assert now["bandoneon_server_rounds_total", ""] == 3
    assert now["bandoneon_server_pushes_total", ""] == 6
    for direction in ("push", "pull"):
        plain = now["bandoneon_server_uncompressed_bytes_total", f'direction="{direction}"']
        sent = now["bandoneon_server_payload_bytes_total", f'direction="{direction}"']
        assert plain == 6 * 400_000 and 20 < plain / sent < 33
        assert now["bandoneon_server_traffic_bytes_total", f'direction="{direction}"'] >= 0
    waits = {labels: value for (name, labels), value in now.items() if name == "bandoneon_server_rank_wait_seconds_total"}
    assert set(waits) == {'rank="0"', 'rank="1"'} and sum(waits.values()) > 0
    assert now["bandoneon_server_held_bytes", 'purpose="replies"'] > 0
    assert now["bandoneon_server_held_limit_bytes", ""] > 1e6
    assert now["bandoneon_server_refusals_total", 'reason="forged"'] == 0


@pytest.mark.parametrize("name, stage, items", [("server 0", "sum", 6), ("server 0", "encode", 3), ("host 0", "encode", 3), ("host 1", "decode", 3)])
def test_stages_are_histograms(scraped, name, stage, items):
    now = read(scraped[name])
    prefix = f"bandoneon_{'server' if 'server' in name else 'worker'}_stage"
    buckets = [value for (metric, labels), value in now.items()
               if metric == prefix + "_seconds_bucket" and labels.startswith(f'stage="{stage}"')]
    assert len(buckets) == 15 and buckets == sorted(buckets) and buckets[-1] == items
    assert now[prefix + "_seconds_count", f'stage="{stage}"'] == items
    assert now[prefix + "_seconds_sum", f'stage="{stage}"'] > 0
    assert now[prefix + "_bytes_total", f'stage="{stage}"'] == items * 400_000


def test_all_of_it_is_documented(scraped):
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = {name for text in scraped.values() for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)}
    # What both have is written down once.
    lacking = {name for name in names if f"`{name}`" not in page
               and f"`{name.replace('bandoneon_worker_', 'bandoneon_server_')}`" not in page}
    assert len(names) > 40 and not lacking
    labels = {label for text in scraped.values() for label in re.findall(r"[{,](\w+)=", text)}
    assert not {label for label in labels - {"le"} if f"`{label}`" not in page}


def test_a_daemon_without_a_job_tells_of_itself_alone():
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    server = Process("server", [str(BIN / "bandoneon-server"), "--scheduler=127.0.0.1:1", "--metrics-listen=127.0.0.1:0"], env)
    try:
        server.wait_for("metrics at port", LIMIT)
        port = re.search(r"metrics at port (\d+)", "".join(server.lines))[1]
        names = {name for name, _ in read(scrape(port))}
        assert "process_open_fds" in names and "bandoneon_build_info" in names
        assert not {name for name in names if name.startswith("bandoneon_server_")}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT)
    finally:
        server.child.kill()
        server.child.wait()
        server.output()
        server.child.stdout.close()


def test_a_scheduler_that_goes_on_counts_the_jobs_that_ended(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    started = []

    def start(name, *command):
        started.append(Process(name, [str(word) for word in command], env))
        return started[-1]

    try:
        scheduler = start("scheduler", BIN / "bandoneon-scheduler", "--exit-when-done=false", "--metrics-listen=127.0.0.1:0",
                          f"--port-file={tmp_path}/port")
        scheduler.wait_for("listens at port", LIMIT)
        env["BANDONEON_SCHEDULER"] = "127.0.0.1:" + (tmp_path / "port").read_text().strip()
        server = start("server", BIN / "bandoneon-server", "--exit-when-done=false", "--metrics-listen=127.0.0.1:0")
        for times, program in ((1, "pass"), (2, "raise SystemError('enough')")):
            done = start("program", sys.executable, "-c", f"import bandoneon\nwith bandoneon.init():\n    {program}")
            assert (done.child.wait(LIMIT) == 0) == (times == 1), done.output()
            for daemon in (scheduler, server):
                daemon.wait_for("ready for the next job", LIMIT, times=times)
        port = re.search(r"metrics at port (\d+)", "".join(scheduler.lines))[1]
        now = read(scrape(port))
        assert now["bandoneon_scheduler_jobs_total", 'result="done"'] == 1
        assert now["bandoneon_scheduler_jobs_total", 'result="failed"'] == 1
        assert len([name for name, _ in now if name == "bandoneon_scheduler_nodes_expected"]) == 2, "of one job alone"
    finally:
        for process in started:
            process.child.kill()
            process.child.wait()
            process.output()
            process.child.stdout.close()


def test_no_name_of_a_tensor_is_told(scraped):
    assert not [name for name, text in scraped.items() if re.search(r'"w"|"w\W', text)]


def test_a_process_tells_the_same_names_in_python(scraped):
    of_python, of_daemon = read(scraped["text-0"]), read(scraped["host 0"])
    assert of_python["bandoneon_worker_tickets_done_total", ""] == 3
    assert of_python["bandoneon_worker_stage_seconds_count", 'stage="encode"'] == 3
    mine = {name for name, _ in of_python}
    assert {name for name, _ in of_daemon if name.startswith("bandoneon_worker_") and not name.endswith("_bucket")} <= mine


def test_metrics_are_off_unless_asked_for_and_a_bad_address_is_named():
    for role in ("scheduler", "server", "worker"):
        more = [] if role == "scheduler" else ["--scheduler=127.0.0.1:1"] + (["--attach=unix:@x"] if role == "worker" else [])
        done = subprocess.run([BIN / f"bandoneon-{role}", *more, "--check-config"], capture_output=True, text=True, check=False)
        assert "metrics-listen = " in done.stdout, done.stderr
        done = subprocess.run([BIN / f"bandoneon-{role}", *more, "--metrics-listen=here", "--check-config"], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 2 and "metrics-listen" in done.stderr and "host:port" in done.stderr
