"""`log-format=json`: every line of a real job is an object that says where it is from."""

import json
import pathlib
import re
import subprocess
import sys

from command_helpers import BIN, LIMIT

PROGRAM = pathlib.Path(__file__).with_name("train_program.py")
LOGGING = PROGRAM.with_name("logging_program.py")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def objects(text):
    found = [json.loads(line) for line in text.splitlines()]
    assert all(TIME.fullmatch(line["time"]) and line["level"] in ("debug", "info", "warning", "error")
               and line["role"] and isinstance(line["message"], str) for line in found)
    return found


def test_every_line_of_a_job_is_an_object(real):
    real.environment["BANDONEON_LOG_FORMAT"] = "json"
    run = real.start("run", "-n", 2, "-s", 1, "--", sys.executable, PROGRAM)
    out, error = run.communicate(timeout=2 * LIMIT)
    assert run.returncode == 0, error
    (first, second) = [line["message"] for line in objects(out)]
    assert first.startswith("trained") and first.split(" to ")[1] == second.split(" to ")[1]
    lines = objects(error)
    jobs = {line["job"] for line in lines if "job" in line}
    assert len(jobs) == 1
    ready = next(line for line in lines if "is ready" in line["message"])
    assert (ready["role"], ready["rank"], ready["epoch"]) == ("server", 0, 1) and ready["node"] > 0
    counted = next(line for line in lines if line["role"] == "server" and "rounds" in line["message"])
    assert counted["step"] >= 5
    done = next(line for line in lines if line["message"] == "the job is done")
    assert done["role"] == "scheduler" and done["epoch"] == 1 and "rank" not in done


def test_every_line_of_a_hosts_daemon_is_an_object(real):
    run = real.start("run", "--hosts", 1, "--procs-per-host", 2, "-s", 1, "--set", "log-format=json", "--",
                     sys.executable, PROGRAM)
    out, error = run.communicate(timeout=2 * LIMIT)
    assert run.returncode == 0, error
    assert [line["role"] for line in sorted(objects(out), key=lambda line: line["role"])] == ["worker 0", "worker 1"]
    takes = next(line for line in objects(error) if "takes 2 processes" in line["message"])
    assert (takes["role"], takes["rank"], takes["epoch"]) == ("worker", 0, 1) and takes["job"]


def test_lines_that_python_logs_are_objects_that_say_where_they_are_from(real):
    real.environment["BANDONEON_LOG_FORMAT"] = "json"
    run = real.start("run", "-n", 1, "-s", 1, "--", sys.executable, LOGGING)
    out, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, error
    # Lines that the command made objects of, because they were none, are of "worker 0".
    assert not [line for line in objects(out + error) if line["role"] == "worker 0"]
    lines = [line for line in objects(out + error) if line["role"] == "worker" and line["level"] in ("warning", "error")]
    job = next(line["job"] for line in objects(error) if line["role"] == "scheduler" and "job" in line)
    assert all((line["job"], line["rank"], line["epoch"]) == (job, 0, 1) and line["node"] > 0 for line in lines)
    gap, failed, warned, once, own = [(line["level"], line["message"]) for line in lines]
    assert gap == ("warning", 'mind the "gap\nand the next line"')
    assert failed[0] == "error" and failed[1].startswith("it failed\nTraceback") and failed[1].endswith("ValueError: odd")
    assert warned[0] == "warning" and "UserWarning: better not" in warned[1]
    assert once == ("warning", "own handler: bandoneon: once"), "by the program's handler alone"
    assert own == ("error", "own handler: of the program: by its own logger")


def test_without_json_python_logs_as_it_always_does(real):
    run = real.start("run", "-n", 1, "-s", 1, "--", sys.executable, LOGGING)
    out, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, error
    assert 'mind the "gap' in error and "and the next line" in error
    # The program asked for objects by its own handler: they say where they are from as far as Python knows.
    (own,) = [line[line.index("{"):] for line in error.splitlines() if "by its own logger" in line]
    assert objects(own)[0]["level"] == "error"


def test_lines_of_programs_are_objects_whatever_is_in_them(staged):
    line = r"""printf 'quote " back \\ bell \a bytes \377\n'; echo '{"own": 1}'"""
    done = subprocess.run([staged.path, "run", "--set", "log-format=json", "--", "sh", "-c", line],
                          env=staged.environment, capture_output=True, timeout=LIMIT, check=True)
    odd, own = [json.loads(line) for line in done.stdout.decode("utf-8").splitlines()]
    assert odd["role"] == "worker 0" and odd["message"] == 'quote " back \\ bell \a bytes \ufffd'
    assert own == {"own": 1}
    objects(done.stderr.decode("utf-8"))


def test_a_daemon_that_cannot_start_says_so_in_an_object(real):
    done = subprocess.run([BIN / "bandoneon-server", "--log-format=json"], env=real.environment, text=True,
                          capture_output=True, timeout=LIMIT)
    assert done.returncode == 2
    (line,) = objects(done.stderr)
    assert line["level"] == "error" and "setting scheduler is missing" in line["message"]
    done = subprocess.run([BIN / "bandoneon-scheduler", "--log-format=xml"], env=real.environment, text=True,
                          capture_output=True, timeout=LIMIT)
    assert done.returncode == 2 and "log format 'xml' is neither text nor json" in done.stderr
