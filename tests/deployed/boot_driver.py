"""Runs inside the booted container: installs nothing, starts the units, trains, stops them; tells what it saw as JSON."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import traceback

JOB = sys.argv[1]
RESULT = pathlib.Path("/result/facts.json")
UNITS = {role: f"bandoneon-{role}@{JOB}.service" for role in ("scheduler", "server", "worker")}
PROCESSES = 2


def systemctl(*arguments):
    return subprocess.run(["systemctl", *arguments], capture_output=True, text=True, timeout=60, check=False)


def show(unit, *keys):
    lines = systemctl("show", "-p", ",".join(keys), unit).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


class Journal:
    """What the units log, as it comes."""

    def __init__(self):
        self._child = subprocess.Popen(["journalctl", "-f", "-n", "all", "-o", "cat"], stdout=subprocess.PIPE, text=True)

    def wait_for(self, text):
        for line in self._child.stdout:
            if text in line:
                return
        raise AssertionError(f"the journal never said {text!r}")


def process_facts(pid):
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return {key: status[key].split()[0] for key in ("Uid", "CapEff", "NoNewPrivs", "Seccomp")}


def program(name):
    """A process of the training, of the daemon's user."""
    return subprocess.Popen(
        ["systemd-run", "--quiet", "--pipe", "--wait", f"--unit={name}", "-p", "DynamicUser=yes", "-p", "User=bandoneon",
         "-E", f"BANDONEON_ATTACH=unix:@bandoneon-{JOB}", "-E", "BANDONEON_LIBRARY=/usr/local/lib/libbandoneon.so.0",
         "-E", "PYTHONPATH=/driver/python", "-E", f"BANDONEON_JOB_ID={JOB}", "python3", "/driver/boot_program.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def read_until(child, text):
    seen = ""
    for line in child.stdout:
        seen += line
        if text in line:
            return
    raise AssertionError(f"never said {text!r}: {seen}")


def main(facts):
    started = systemctl("start", *UNITS.values())
    assert started.returncode == 0, started.stderr
    facts["started"] = {role: show(unit, "ActiveState", "StatusText") for role, unit in UNITS.items()}
    facts["process"] = {role: process_facts(show(unit, "MainPID")["MainPID"]) for role, unit in UNITS.items()}

    journal = Journal()
    children = [program(f"train-{i}") for i in range(PROCESSES)]
    for child in children:
        read_until(child, "half way")
    facts["training"] = {role: show(unit, "StatusText")["StatusText"] for role, unit in UNITS.items()}
    # A scheduler that is lost is started again, and goes on with the job of its journal.
    lost = show(UNITS["scheduler"], "MainPID")["MainPID"]
    os.kill(int(lost), signal.SIGKILL)
    journal.wait_for("this scheduler goes on with job")
    kept = pathlib.Path(f"/var/lib/bandoneon/{JOB}/journal")
    facts["after a kill"] = {"mode": f"{kept.stat().st_mode & 0o777:o}", "user": str(kept.stat().st_uid),
                             "another": show(UNITS["scheduler"], "MainPID")["MainPID"] != lost}

    # The scheduler stays until the job has ended: it would leave that to the one that is started next.
    drained = {role: unit for role, unit in UNITS.items() if role != "scheduler"}
    for unit in drained.values():
        systemctl("stop", "--no-block", unit)
    for _ in drained:
        journal.wait_for("to end by itself")
    facts["draining"] = {role: show(unit, "ActiveState")["ActiveState"] for role, unit in drained.items()}
    for child in children:  # both, before either is waited for: they leave together
        child.stdin.write("go on\n")
        child.stdin.flush()
    outputs = [child.communicate(timeout=60)[0] for child in children]
    facts["programs"] = [[child.returncode, output] for child, output in zip(children, outputs)]
    systemctl("stop", *UNITS.values())  # waits for those that are under way
    facts["stopped"] = {role: show(unit, "ActiveState", "Result") for role, unit in UNITS.items()}

    # Who hangs is ended, and started again.
    unit = UNITS["scheduler"]
    folder = pathlib.Path(f"/run/systemd/system/{unit}.d")
    folder.mkdir(parents=True)
    (folder / "short.conf").write_text("[Service]\nWatchdogSec=2s\n")
    systemctl("daemon-reload")
    systemctl("start", unit)
    hung = show(unit, "MainPID")["MainPID"]
    os.kill(int(hung), signal.SIGSTOP)
    journal.wait_for("Watchdog timeout")
    journal.wait_for("Started bandoneon-scheduler")
    facts["after a hang"] = show(unit, "ActiveState", "NRestarts") | {"another": show(unit, "MainPID")["MainPID"] != hung}
    systemctl("stop", unit)


seen = {}
try:
    main(seen)
except BaseException:  # whatever it is, the test is to see it
    seen["error"] = traceback.format_exc()
    seen["journal"] = subprocess.run(["journalctl", "--no-pager", "-n", "200"], capture_output=True, text=True, check=False).stdout
RESULT.write_text(json.dumps(seen))
systemctl("poweroff", "--force", "--force")
