"""deploy/observability, by reading and by promtool: rules, Prometheus' configuration, the dashboard, and what they ask of daemons."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from deploy_helpers import DEPLOY, ROOT, run

HERE = DEPLOY / "observability"
RULES = yaml.safe_load((HERE / "rules.yml").read_text(encoding="utf-8"))
CONFIG = yaml.safe_load((HERE / "prometheus.yml").read_text(encoding="utf-8"))
BOARD = json.loads((HERE / "dashboard.json").read_text(encoding="utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
RECORDS = {rule["record"]: rule for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
EXPRESSIONS = ([rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
               + [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]])


def promtool(*arguments):
    if shutil.which("promtool") is None:
        pytest.skip("no promtool on the PATH: its shape alone is checked")
    done = run("promtool", *arguments, cwd=HERE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_accepts_rules_and_configuration():
    assert "SUCCESS" in promtool("check", "rules", "rules.yml")
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")


def test_alerts_fire_when_they_should_and_not_else():
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml")


def test_every_alert_is_tested_both_ways_and_says_what_is_wrong():
    quiet, loud = yaml.safe_load((HERE / "rules_test.yml").read_text(encoding="utf-8"))["tests"]
    for test, fires in ((quiet, False), (loud, True)):
        assert {case["alertname"] for case in test["alert_rule_test"]} == set(ALERTS)
        assert all(bool(case.get("exp_alerts")) == fires for case in test["alert_rule_test"])
    for rule in ALERTS.values():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"] and rule["annotations"]["description"]


def test_every_alert_has_its_row_in_the_documentation():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(ALERTS) <= set(rows)


def test_names_that_are_asked_for_are_those_of_the_documentation():
    """That a running job has them, tests/deployed tries."""
    documented = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for expression in EXPRESSIONS:
        for name in re.findall(r"\b(?:bandoneon_[a-z_]+|process_[a-z_]+)\b", re.sub(r'=~"[^"]*"', "", expression)):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in documented, name
        for record in re.findall(r"bandoneon:[\w:]+", expression):
            assert record in RECORDS and record in documented, record


def test_the_configuration_watches_with_the_rules():
    assert [(HERE / path).exists() for path in CONFIG["rule_files"]] == [True]
    (scraped,) = CONFIG["scrape_configs"]
    assert scraped["file_sd_configs"][0]["files"] == ["targets/*.yml"]
    assert re.search(r'up\{job=~"([^"]*)"\}', ALERTS["DaemonDown"]["expr"])[1] == f".*{scraped['job_name']}.*"


def test_the_dashboard_is_one():
    assert BOARD["uid"] and BOARD["schemaVersion"] >= 36
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids)) >= 10
    taken = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and panel["title"] and panel["targets"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, f"{panel['title']} lies over another"
        taken |= cells
        assert [target["refId"] for target in panel["targets"]] == [chr(65 + i) for i in range(len(panel["targets"]))]
    known = {variable["name"] for variable in BOARD["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]))) <= known


def test_what_kubernetes_gets_is_what_is_written_here():
    done = subprocess.run([sys.executable, HERE / "render", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments, said", [((), "no targets"), (("10.0.0.1",), "expected HOST:PORT"), (("--nmae", "x"), "--nmae"),
                                             (("--name", "a b", "h:1"), "--name"), (("--interval", "soon", "h:1"), "--interval")])
def test_start_refuses_what_it_cannot_use(arguments, said):
    done = run(HERE / "start", *arguments)
    assert done.returncode == 2 and said in done.stderr


def test_start_has_help():
    done = run(HERE / "start", "--help")
    assert done.returncode == 0 and "--metrics-listen" in done.stdout
