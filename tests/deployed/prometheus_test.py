"""deploy/observability/start over a job that runs: what rules and dashboard ask for is there, and no alert has a reason."""

import json
import os
import re
import shutil
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
import yaml
from debian_roots import ROOT

sys.path[:0] = [str(ROOT / "tests" / "deploy"), str(ROOT / "tests" / "system")]
from deploy_helpers import BIN, DEPLOY  # noqa: E402
from process_helpers import Process  # noqa: E402

HERE = DEPLOY / "observability"
LIMIT = 90
NAME = "gpt-7"
RULES = [rule for group in yaml.safe_load((HERE / "rules.yml").read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
PANELS = [target["expr"] for panel in json.loads((HERE / "dashboard.json").read_text(encoding="utf-8"))["panels"]
          for target in panel["targets"]]
# Trains until the job is told to end.
PROGRAM = """
import ctypes
import bandoneon
from bandoneon.calls import Declaration
with bandoneon.init() as worker:
    n = 200_000
    data = (ctypes.c_float * n)(*([1.0] * n))
    (tensor,) = worker.declare([Declaration("w", n, push="ef(onebit)", pull="ef(onebit)")])
    print("training", worker.rank, flush=True)
    while True:
        worker.wait(worker.push(tensor, ctypes.addressof(data), keep=data))
"""


def selectors(expression):
    """What an expression reads, without what it makes of it."""
    plain = re.sub(r"\[[^\]]*\]", "", expression)
    found = re.findall(r'(?:\b(?:bandoneon|process)[\w:]*|\bup(?=\{))(?:\{[^}]*\})?|(?<![\w:])\{[^}]*\}', re.sub(r"\b(?:by|on|group_left) \([^)]*\)", "", plain))
    assert found, expression
    return found


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Prometheus:
    def __init__(self, address):
        self._address = address

    def get(self, path, **query):
        url = f"http://{self._address}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def ask(self, expression):
        return self.get("/api/v1/query", query=expression)["result"]

    def until(self, done):
        """Asks again until `done()` is empty; what it still is when the time is over."""
        end = time.monotonic() + LIMIT
        while True:
            try:
                left = done()
            except (urllib.error.URLError, ConnectionError):
                left = ["it does not answer"]
            if not left or time.monotonic() > end:
                return left


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    env = {k: v for k, v in os.environ.items() if not k.startswith("BANDONEON_")}
    job = Process("job", [str(BIN / "bandoneon"), "run", "--hosts", "2", "--procs-per-host", "1", "-s", "2", "--set",
                          "metrics-listen=127.0.0.1:0", "--", sys.executable, "-c", PROGRAM], env)
    started = None
    try:
        for rank in range(2):
            job.wait_for(f"training {rank}")
        targets = ["127.0.0.1:" + port for port in re.findall(r"metrics at port (\d+)", "".join(job.lines))]
        assert len(targets) == 5, "scheduler, two servers, two hosts' daemons"
        address = f"127.0.0.1:{free_port()}"
        started = Process("start", [str(HERE / "start"), "--name", NAME, "--listen", address, "--interval", "1s", "--data",
                                    str(folder / "data"), *targets], env)
        started.wait_for("Server is ready to receive web requests")
        yield Prometheus(address)
    finally:
        for process in (started, job):
            if process is None:
                continue
            process.child.terminate()
            process.child.wait(LIMIT)
            process.output()
            process.child.stdout.close()


def test_every_target_answers(prometheus):
    def down():
        targets = prometheus.get("/api/v1/targets")["activeTargets"]
        return [target for target in targets if target["health"] != "up"] if len(targets) == 5 else ["too few"]

    assert not prometheus.until(down)
    assert {found["metric"]["namespace"] for found in prometheus.ask("up")} == {NAME}


def test_every_panel_shows_something(prometheus):
    asked = [expression.replace("$namespace", ".*").replace("$__rate_interval", "30s") for expression in PANELS]
    assert not prometheus.until(lambda: [expression for expression in asked if not prometheus.ask(expression)])


def test_every_rule_has_what_it_reads(prometheus):
    asked = {selector for rule in RULES for selector in selectors(rule["expr"])}
    assert len(asked) > 12
    assert not prometheus.until(lambda: [selector for selector in asked if not prometheus.ask(f"count({selector})")])
    records = [rule["record"] for rule in RULES if "record" in rule]
    assert not prometheus.until(lambda: [record for record in records if not prometheus.ask(record)])


def test_rules_are_evaluated_and_nothing_is_wrong_with_this_job(prometheus):
    def unhealthy():
        rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
        assert len(rules) == len(RULES)
        return [rule for rule in rules if rule["health"] != "ok"]

    assert not prometheus.until(unhealthy)
    assert not prometheus.ask('ALERTS{alertstate="firing"}')


def test_what_is_recorded_is_right(prometheus):
    assert not prometheus.until(lambda: [] if len(prometheus.ask("bandoneon:compression:ratio")) == 2 else ["not yet"])
    for found in prometheus.ask("bandoneon:compression:ratio"):
        assert 20 < float(found["value"][1]) < 33, "a bit for each of 32, and the scales"
    ranks = {found["metric"]["rank"] for found in prometheus.ask("bandoneon:rank_wait_seconds:mean5m")}
    assert ranks == {"0", "1"}
