"""The units of deploy/systemd in a container that systemd has booted: started, trained through, stopped, hung."""

import json
import re
import shutil
import subprocess
import sys

import pytest
from debian_roots import ROOT, need

sys.path.insert(0, str(ROOT / "tests" / "deploy"))
from deploy_helpers import BIN, DEPLOY, ROLES, issue_certificates  # noqa: E402

JOB = "gpt-7"
LIMIT = 180
DRIVER = "boot-driver.service"
# The examples' addresses are of two hosts; this is one, and of one host's daemon.
HERE = {"10.0.0.1": "127.0.0.1", "10.0.0.2": "127.0.0.1", "BANDONEON_WORKERS=2": "BANDONEON_WORKERS=1",
        "BANDONEON_SERVERS=2": "BANDONEON_SERVERS=1", "BANDONEON_PROCESSES=4": "BANDONEON_PROCESSES=2"}


def configure(folder):
    """/etc/bandoneon of the container: the examples, with certificates."""
    issued = issue_certificates(folder.parent / "certs", JOB)
    for role in ROLES:
        shutil.copytree(issued[role], folder / JOB / role)
        text = (DEPLOY / "systemd" / f"{role}.env").read_text(encoding="utf-8")
        for example, here in HERE.items():
            text = text.replace(example, here)
        (folder / JOB / f"{role}.env").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def facts(bootable, tmp_path_factory):
    need("systemd-nspawn")
    folder = tmp_path_factory.mktemp("boot")
    configure(folder / "etc")
    (folder / "result").mkdir()
    (folder / DRIVER).write_text("[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\n"
                                 f"ExecStart=python3 /driver/boot_driver.py {JOB}\n", encoding="utf-8")
    binds = {f"{folder}/etc": "/etc/bandoneon", f"{folder}/{DRIVER}": f"/etc/systemd/system/{DRIVER}",
             f"{ROOT}/python": "/driver/python", f"{BIN.parent}/lib/libbandoneon.so.0": "/usr/local/lib/libbandoneon.so.0"}
    for name in ("boot_driver.py", "boot_program.py"):
        binds[f"{ROOT}/tests/deployed/{name}"] = f"/driver/{name}"
    for role in ROLES:
        binds[f"{BIN}/bandoneon-{role}"] = f"/usr/local/bin/bandoneon-{role}"
        name = f"bandoneon-{role}@.service"
        binds[f"{DEPLOY}/systemd/{name}"] = f"/etc/systemd/system/{name}"
    command = ["systemd-nspawn", "--quiet", f"--directory={bootable}", f"--machine=bdn-{folder.name}", "--volatile=overlay",
               "--register=no", "--keep-unit", "--boot", "--private-network", f"--bind={folder}/result:/result",
               *(f"--bind-ro={here}:{there}" for here, there in binds.items()), f"systemd.wants={DRIVER}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, check=False)
    result = folder / "result" / "facts.json"
    if not result.exists():
        pytest.fail(f"the container did not get to the driver:\n{done.stdout[-3000:]}{done.stderr}")
    seen = json.loads(result.read_text(encoding="utf-8"))
    assert "error" not in seen, seen["error"] + seen["journal"]
    return seen


def test_units_are_active_once_they_say_so(facts):
    for role in ROLES:
        assert facts["started"][role]["ActiveState"] == "active"
        assert facts["started"][role]["StatusText"]


def test_daemons_run_as_one_user_without_rights(facts):
    processes = facts["process"]
    assert len({processes[role]["Uid"] for role in ROLES}) == 1
    for role in ROLES:
        assert 61184 <= int(processes[role]["Uid"]) <= 65519, "systemd's dynamic users"
        assert int(processes[role]["CapEff"], 16) == 0
        assert processes[role]["NoNewPrivs"] == "1" and processes[role]["Seccomp"] == "2"


def test_a_job_runs_through_them(facts):
    assert facts["training"] == {"scheduler": "a job runs", "server": "serving a job", "worker": "taking part in a job"}
    assert [code for code, _ in facts["programs"]] == [0, 0], facts["programs"]
    assert all(re.search("ended well", output) for _, output in facts["programs"])


def test_a_scheduler_that_is_lost_goes_on_with_the_job(facts):
    assert facts["after a kill"] == {"mode": "700", "user": facts["process"]["scheduler"]["Uid"], "another": True}


def test_a_stop_lets_the_job_end(facts):
    assert set(facts["draining"].values()) == {"deactivating"}
    assert all(seen == {"ActiveState": "inactive", "Result": "success"} for seen in facts["stopped"].values())


def test_a_daemon_that_hangs_is_started_again(facts):
    assert facts["after a hang"] == {"ActiveState": "active", "NRestarts": "1", "another": True}
