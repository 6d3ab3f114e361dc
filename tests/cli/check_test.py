"""`bandoneon check`: jobs of real processes whose links are measured, and `bandoneon run --check` before a program."""

import json
import os
import pathlib
import re
import shutil
import signal
import sys

import pytest
from command_helpers import BIN, Command, children_of, read_until, write_program

LIMIT = 240  # seconds, on a busy machine
QUIET = ("--set", "log-level=warning")
CHECK = (BIN / "bandoneon", "check", "--seconds", "2")
PROGRAM = "import bandoneon\nwith bandoneon.init() as worker:\n    worker.barrier()\n    print('trained', worker.rank)\n"


def finish(process):
    out, error = process.communicate(timeout=LIMIT)
    return process.returncode, out, error


def report_of(out):
    (line,) = [line for line in out.splitlines() if line.startswith("[worker 0] {")]
    return json.loads(line.removeprefix("[worker 0] "))


def checked(real, *options, seconds=2):
    """The report of a check among three workers and two servers, which finds no error."""
    command = (BIN / "bandoneon", "check", "--seconds", seconds, "--json")
    code, out, error = finish(real.start("run", "-n", 3, "-s", 2, *QUIET, *options, "--", *command))
    assert code == 0, error
    return report_of(out)


def rates_of(report):
    return [pair[name] for pair in report["pairs"] for name in ("up_bits_per_s", "down_bits_per_s")]


def check_blamed(report, worker=None, server=None):
    """The link of this end is told, and nothing else. On a machine that others load the verdict may be that alone."""
    blamed = [(each["kind"], each["worker"], each["server"]) for each in report["verdicts"] if each["kind"] != "busy"]
    is_busy = any(each["kind"] == "busy" for each in report["verdicts"])
    assert blamed == [("link", worker, server)] or (is_busy and not blamed), report
    return [each for each in report["verdicts"] if each["kind"] == "link"]


def slow_server(folder, rank, rate):
    """The command among the real daemons, with a server whose link has this rate."""
    folder.mkdir()
    for name in ("bandoneon", "bandoneon-scheduler", "bandoneon-worker"):
        shutil.copy(BIN / name, folder)
    (folder / "bandoneon-bench-roof").symlink_to(BIN / "bandoneon-bench-roof")
    write_program(folder / "bandoneon-server", f"""#!/bin/sh
case " $* " in *" --rank={rank} "*) export BANDONEON_LINK={rate};; esac
exec {BIN / "bandoneon-server"} "$@"
""")
    return folder


@pytest.fixture
def with_slow_server(tmp_path):
    commands = []

    def make(rank, rate):
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        commands.append(Command(slow_server(tmp_path / "bin", rank, rate), temporary))
        commands[-1].environment["LD_LIBRARY_PATH"] = str(BIN.parent / "lib")
        return commands[-1]

    yield make
    for command in commands:
        for process in command.started:
            process.kill()
            process.communicate()


def test_every_pair_and_each_machine_is_measured(real):
    report = checked(real)
    assert [(pair["worker"], pair["server"]) for pair in report["pairs"]] == [(w, s) for w in range(3) for s in range(2)]
    assert all(figure > 0 for pair in report["pairs"] for figure in pair.values() if isinstance(figure, float))
    assert all(rate > 1e6 for rate in rates_of(report))
    assert report["all_at_once"]["up_bits_per_s"] > 1e6
    (machine,) = report["machines"]
    assert machine["memory_bytes_per_s"] > 1e8 and machine["loopback_bits_per_s"] > 1e7 and machine["cores"] >= 1
    assert 0 < machine["cpu_share"] <= 1
    assert len({node["host"] for node in report["workers"] + report["servers"]}) == 1


def test_the_rates_are_those_of_the_link(real):
    rates = rates_of(checked(real, "--link", "20mbit"))
    # A busy machine may make them less, and nothing makes them more.
    assert max(rates) < 1.1 * 20e6
    assert sorted(rates)[len(rates) // 2] > 0.5 * 20e6


def test_a_slow_link_takes_a_bounded_time(real):
    rates = rates_of(checked(real, "--link", "0.1mbit"))
    assert len(rates) == 12 and 0.5 * 1e5 < min(rates) <= max(rates) < 1.1 * 1e5


def test_a_worker_whose_link_is_halved_is_named_and_nobody_else(real):
    halved = f'[ "$BANDONEON_RANK" = 1 ] && export BANDONEON_LINK=5mbit; exec {BIN}/bandoneon check --seconds 12 --json'
    code, out, error = finish(real.start("run", "-n", 3, "-s", 2, *QUIET, "--link", "10mbit", "--", "sh", "-c", halved))
    assert code == 0, error
    for verdict in check_blamed(report_of(out), worker=1):
        assert verdict["direction"] == "both ways" and 1.5 <= verdict["factor"] < 3
        assert "worker 1 on" in verdict["seen"] and "median" in verdict["seen"] and "(link, transport)" in verdict["remedy"]


def test_a_server_whose_link_is_halved_is_named_and_nobody_else(with_slow_server):
    check_blamed(checked(with_slow_server(1, "5mbit"), "--link", "10mbit", seconds=12), server=1)


def test_a_program_starts_after_a_check_of_its_job(real, tmp_path):
    recordings = tmp_path / "trace"
    recordings.mkdir()
    code, out, error = finish(real.start(
        "run", "-n", 2, "-s", 1, *QUIET, "--check", "--set", f"trace={recordings}", "--set", "partition-bytes=64KiB", "--",
        sys.executable, "-c", PROGRAM))
    assert code == 0, error
    # The program's output has nothing that the check prints.
    assert sorted(out.splitlines()) == ["[worker 0] trained 0", "[worker 1] trained 1"]
    assert "up, workers to servers" in error and "round trip of 256 bytes" in error
    # The check has left nothing among the job's own recordings.
    assert len(list(recordings.iterdir())) == 3


def test_each_host_has_one_worker_in_the_check(real):
    code, out, error = finish(real.start(
        "run", "--hosts", 2, "--procs-per-host", 2, "-s", 1, *QUIET, "--check", "--", sys.executable, "-c", PROGRAM))
    assert code == 0, error
    assert "measures 2 pairs of 2 workers and 1 server" in error
    assert out.count("trained") == 4


def test_a_process_behind_a_hosts_daemon_says_what_to_do(real):
    code, _, error = finish(real.start("run", "--hosts", 1, "--procs-per-host", 2, "-s", 1, *QUIET, "--", *CHECK))
    assert code != 0
    assert "takes part through its host's daemon" in error and "bandoneon run --check" in error


def test_a_program_is_not_started_after_an_error(with_slow_server):
    code, out, error = finish(with_slow_server(1, "1mbit").start(
        "run", "-n", 2, "-s", 2, *QUIET, "--link", "10mbit", "--check", "--", "echo", "trained"))
    if re.search(r"warning +busy", error) and code == 0:
        pytest.skip("others load this machine, so that the check does not tell the link from them")
    assert code == 1
    assert "trained" not in out
    assert re.search(r"error +link +server 1 on", error), error
    assert "[run] the check of the job ended with 1: echo is not started" in error


def test_a_program_is_not_started_after_a_check_that_fails(with_slow_server):
    command = with_slow_server(1, "1mbit")
    write_program(command.path.parent / "bandoneon-server", "#!/bin/sh\nexit 3\n")
    code, out, error = finish(command.start("run", "-n", 2, "-s", 2, *QUIET, "--check", "--", "echo", "trained"))
    assert code == 3 and "trained" not in out
    assert "[run] the check of the job ended with 3: echo is not started" in error


@pytest.mark.parametrize("setting", ["min-compress-bytes=1MiB", "partition-bytes=256KiB"])
def test_settings_that_keep_directions_together_are_refused(real, setting):
    code, _, error = finish(real.start("run", "-n", 2, "-s", 2, *QUIET, "--set", setting, "--", *CHECK))
    assert code != 0
    assert f"setting {setting.split('=')[0]}" in error and "run" in error


@pytest.fixture
def begun(real):
    """A check that has begun and takes long, with the number of the process that has these words in its arguments or variables."""
    process = real.start("run", "-n", 3, "-s", 2, *QUIET, "--link", "1mbit", "--", BIN / "bandoneon", "check", "--seconds", "20")
    read_until(process.stderr, 1, "measures 6 pairs")

    def find(*words):
        (guardian,) = children_of(process.pid)
        (pid,) = [pid for pid in children_of(guardian) if all(
            f"{word}\0".encode() in b"".join(pathlib.Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
            for word in words)]
        return pid

    return process, find


def test_a_worker_that_is_killed_in_the_check_is_named(begun):
    process, find = begun
    os.kill(find("check", "BANDONEON_RANK=1"), signal.SIGKILL)
    code, out, error = finish(process)
    assert code == 128 + signal.SIGKILL
    assert "worker 1" in error.splitlines()[-1] and "up, workers to servers" not in out


def test_no_other_server_is_measured_in_place_of_one_that_is_killed(begun):
    process, find = begun
    os.kill(find("--rank=1"), signal.SIGKILL)
    code, out, error = finish(process)
    assert code == 1
    assert "server 1 was lost while the job was checked" in error and "up, workers to servers" not in out


@pytest.mark.parametrize("arguments, said", [
    (["--seconds", "0"], "option --seconds is '0'"),
    (["--", "python"], "it runs no command"),
    (["--sconds", "3"], "did you mean"),
])
def test_wrong_arguments_are_named(real, arguments, said):
    result = real.run("check", *arguments)
    assert result.returncode == 2 and said in result.stderr


def test_one_worker_and_one_server_have_figures_and_no_comparison(real):
    code, out, error = finish(real.start("run", "-n", 1, "-s", 1, *QUIET, "--", *CHECK))
    assert code == 0, error
    assert re.search(r"note +pairs +one worker and one server", out)
