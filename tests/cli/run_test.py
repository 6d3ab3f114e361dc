"""`bandoneon run`, with stand-ins for the daemons: what it owes its user whatever the job does."""

import os
import pathlib
import signal
import subprocess

import pytest
from command_helpers import LIMIT, Watched, children_of, descendants_of, read_until, write_program


def shell(line):
    return ["--", "sh", "-c", line]


def test_returns_0_and_tags_lines_when_all_workers_return_0(staged):
    done = staged.run("run", "-n", 2, "-s", 2, *shell("echo I am $RANK; echo oops >&2; printf end"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[worker 0] I am 0", "[worker 0] end", "[worker 1] I am 1", "[worker 1] end"]
    assert "[worker 1] oops" in done.stderr.splitlines()
    assert staged.left_behind() == []


def test_workers_find_the_job_and_each_other(staged):
    names = ["BANDONEON_SCHEDULER", "BANDONEON_RANK", "BANDONEON_PUSH", "BANDONEON_PULL",
             "BANDONEON_LINK", "BANDONEON_LEASE_TIMEOUT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"]
    line = "echo " + " ".join(f"${name}" for name in names) + "; echo port $MASTER_PORT; echo $BANDONEON_JOB_ID"
    done = staged.run("run", "-n", 1, "-s", 1, "--push", "fp16", "--pull", "ef(onebit)", "--link", "200mbit",
                      "--set", "lease-timeout=9s", *shell(line))
    assert done.returncode == 0, done.stderr
    first, port, job = done.stdout.replace("[worker 0] ", "").splitlines()
    assert first == "127.0.0.1:4242 0 fp16 ef(onebit) 200mbit 9s 0 0 1 127.0.0.1"
    assert 0 < int(port.removeprefix("port ")) < 65536
    other = staged.run("run", *shell("echo $BANDONEON_JOB_ID"))
    assert job and other.stdout != f"[worker 0] {job}\n"


def test_every_run_has_a_secret_of_its_own_and_tells_it_nobody(staged):
    line = "echo $BANDONEON_TOKEN; cat /proc/$PPID/cmdline | tr '\\0' ' '"
    first, second = (staged.run("run", "-n", 1, *shell(line)) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr
    tokens = [done.stdout.splitlines()[0].removeprefix("[worker 0] ") for done in (first, second)]
    assert all(len(token) == 64 for token in tokens) and tokens[0] != tokens[1]
    assert tokens[0] not in first.stderr and tokens[0] not in first.stdout.split("\n", 1)[1]
    given = staged.run("run", "--set", "token=sesame", *shell("echo $BANDONEON_TOKEN"))
    assert given.stdout == "[worker 0] sesame\n"
    staged.environment["BANDONEON_TOKEN_FILE"] = "/some/file"
    assert staged.run("run", *shell("echo x$BANDONEON_TOKEN")).stdout == "[worker 0] x\n"


def test_the_secret_of_a_run_lies_in_a_file_that_its_user_alone_reads(staged):
    run = staged.start("run", *shell("echo $BANDONEON_TOKEN; sleep 1000"))
    hint = read_until(run.stderr, 1, "--token-file")[-1].split()
    assert hint[1:6] == ["see", "bandoneon", "status", "--scheduler", "127.0.0.1:4242"]
    file = pathlib.Path(hint[-1])
    token = read_until(run.stdout, 1, "[worker 0]")[-1].removeprefix("[worker 0] ")
    assert file.read_text().strip() == token
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    run.terminate()
    run.communicate(timeout=LIMIT)
    assert not file.exists()


def test_workers_have_no_input(staged):
    assert staged.run("run", *shell("cat; echo read all")).stdout == "[worker 0] read all\n"


def test_returns_the_code_of_the_worker_that_failed_and_ends_the_others(staged):
    line = 'if [ $RANK = 1 ]; then exit 7; fi; trap "echo told; exit 0" TERM; sleep 1000 & wait'
    done = staged.run("run", "-n", 3, "-s", 1, "--linger", "0s", *shell(line))
    assert done.returncode == 7
    assert "worker 1" in done.stderr and "exited with code 7" in done.stderr
    assert staged.left_behind() == []


def test_others_may_end_with_errors_of_their_own(staged):
    line = "if [ $RANK = 1 ]; then exit 7; fi; echo worker 1 is lost; exit 9"
    done = staged.run("run", "-n", 2, "-s", 1, *shell(line))
    assert done.returncode in (7, 9)
    assert "[worker 0] worker 1 is lost" in done.stdout


def test_who_ends_first_is_not_the_cause_where_the_scheduler_knows_better(staged):
    # As when a worker gives up, whom servers outrun on the way out. Worker 0 left in peace.
    scheduler = staged.path.parent / "bandoneon-scheduler"
    write_program(scheduler, scheduler.read_text().replace("do case $arg in", "do case $arg in "
                  "--failure-file=*) printf 'worker 0\\nworker 1\\nworker 2\\n' > ${arg#*=};;"))
    write_program(staged.path.parent / "bandoneon-server", f"#!/bin/sh\n: > {staged.temporary}/over; exit 1\n")
    line = f"while ! [ -e {staged.temporary}/over ]; do sleep 0.1; done; [ $RANK = 0 ] && exit 0; exit $((6 + RANK))"
    done = staged.run("run", "-n", 3, "-s", 1, *shell(line))
    assert done.returncode == 7
    assert [line for line in done.stderr.splitlines() if "because" in line] == [
        next(line for line in done.stderr.splitlines() if "the job failed because worker 1" in line)]
    assert "[run] server 0" in done.stderr


def test_what_ignores_sigterm_is_killed(staged):
    line = 'if [ $RANK = 1 ]; then exit 7; fi; trap "" TERM; sleep 1000'
    done = staged.run("run", "-n", 2, "-s", 1, "--linger", "0s", "--grace", "100ms", *shell(line))
    assert done.returncode == 7


def test_names_a_worker_that_was_killed(staged):
    run = staged.start("run", "-n", 2, "-s", 1, "--linger", "0s", *shell("echo pid $$; exec sleep 1000"))
    lines = read_until(run.stdout, 2, "pid")
    victim = int(next(line for line in lines if "[worker 1]" in line).split()[-1])
    os.kill(victim, signal.SIGKILL)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + 9
    assert f"worker 1 (pid {victim}) was killed by signal 9" in error


@pytest.mark.parametrize("name, code", [("server", 5), ("scheduler", 6)])
def test_names_a_daemon_that_fails(staged, name, code):
    path = staged.path.parent / f"bandoneon-{name}"
    write_program(path, path.read_text().replace("exec sleep 1000", f"exit {code}"))
    done = staged.run("run", "-n", 1, "-s", 2, "--linger", "0s", *shell("exec sleep 1000"))
    assert done.returncode == code
    assert name in done.stderr and f"exited with code {code}" in done.stderr


def test_starts_nothing_more_when_the_scheduler_does_not_come_up(staged):
    write_program(staged.path.parent / "bandoneon-scheduler", "#!/bin/sh\necho no >&2; exit 4\n")
    done = staged.run("run", *shell("echo started"))
    assert done.returncode == 4
    assert "the scheduler exited with code 4" in done.stderr and "[scheduler] no" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_passes_signals_on(staged, number):
    line = f'trap "echo got it; exit 0" {number.value}; echo ready; sleep 1000 & wait'
    run = staged.start("run", "-n", 2, "-s", 1, *shell(line))
    read_until(run.stdout, 2, "ready")
    run.send_signal(number)
    out, _ = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + number
    assert sorted(out.splitlines()) == ["[worker 0] got it", "[worker 1] got it"]


def test_a_second_signal_kills_at_once(staged):
    run = staged.start("run", "--grace", "1h", *shell('trap "echo no" INT; echo ready; while :; do sleep 1; done'))
    read_until(run.stdout, 1, "ready")
    run.send_signal(signal.SIGINT)
    read_until(run.stderr, 1, "passed on")
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + signal.SIGINT


def start_with_strays(staged):
    """A run whose workers have children in their group, out of it, and in a session of their own."""
    line = "sleep 1000 & setsid sleep 1000 & sh -c 'sleep 1000 & sleep 1000' & echo ready; wait"
    run = staged.start("run", "-n", 2, "-s", 2, *shell(line))
    read_until(run.stdout, 2, "ready")
    everybody = [Watched(pid) for pid in descendants_of(run.pid)]
    assert len(everybody) >= 1 + 1 + 2 + 2 * 3
    return run, everybody


def test_nothing_is_left_when_it_is_killed(staged):
    run, everybody = start_with_strays(staged)
    run.kill()
    run.wait(timeout=LIMIT)
    assert all(process.ends() for process in everybody)
    assert staged.left_behind() == []


def test_nothing_is_left_when_its_guardian_is_killed(staged):
    run, everybody = start_with_strays(staged)
    (guardian,) = children_of(run.pid)
    os.kill(guardian, signal.SIGKILL)
    run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + 9
    assert all(process.ends() for process in everybody)
    assert staged.left_behind() == []


def test_children_of_a_worker_that_ended_well_do_not_stay(staged):
    run = staged.start("run", *shell("setsid sleep 1000 & echo stray $!; exec sleep 0"))
    stray = Watched(int(read_until(run.stdout, 1, "stray")[-1].split()[-1]))
    run.communicate(timeout=LIMIT)
    assert run.returncode == 0
    assert stray.ends()


def test_ends_when_nobody_reads_its_output(staged):
    read_end, write_end = os.pipe()
    run = staged.start("run", *shell("while echo line; do :; done"), stdout=write_end, stderr=subprocess.DEVNULL)
    os.close(write_end)
    os.read(read_end, 10)
    os.close(read_end)
    assert run.wait(timeout=LIMIT) != 0


@pytest.mark.parametrize("args, names", [
    (["--wrokers", "3", "--", "true"], "unknown option --wrokers"),
    (["-n", "0", "--", "true"], "--workers is '0'"),
    (["-s", "two", "--", "true"], "--servers is 'two'"),
    (["-n", "2"], "no command"),
    (["-n", "2", "train.py"], "train.py"),
    (["--push", "onebitt", "--", "true"], "onebit"),
    (["--pull", "ef(topk(ratio=2))", "--", "true"], "ratio"),
    (["--set", "threads", "--", "true"], "expected name=value"),
    (["--set", "workers=3", "--", "true"], "use -n"),
    (["--set", "threads=3", "--set", "threads=4", "--", "true"], "threads is given twice"),
    (["--grace", "soon", "--", "true"], "--grace is 'soon'"),
])
def test_names_what_is_wrong_before_anything_starts(staged, args, names):
    write_program(staged.path.parent / "bandoneon-scheduler", "#!/bin/sh\necho started >&2; exit 1\n")
    done = staged.run("run", *args)
    assert done.returncode == 2
    assert names in done.stderr
    assert "started" not in done.stderr and staged.left_behind() == []


def test_a_program_that_is_not_there_is_named(staged):
    done = staged.run("run", "--", "no-such-program")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr


@pytest.mark.parametrize("command", [[], ["run"], ["status"], ["bench"], ["bench", "pushpull"], ["bench", "idle"],
                                     ["bench", "codecs"]])
def test_help_has_examples(staged, command):
    done = staged.run(*command, "--help")
    assert done.returncode == 0
    assert "Examples:" in done.stdout and "  bandoneon " in done.stdout


def test_unknown_commands_are_named(staged):
    assert "unknown command 'rnu'" in staged.run("rnu").stderr
    assert "unknown command 'bench push'" in staged.run("bench", "push").stderr
    assert staged.run("--version").stdout.startswith("bandoneon 0.")
