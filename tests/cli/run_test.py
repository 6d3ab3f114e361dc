"""`bandoneon run`, with stand-ins for the daemons: what it owes its user whatever the job does."""

import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import time

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
    done = staged.run("run", "-n", 2, *shell("cat; echo read all"), input="typed\n")
    assert sorted(done.stdout.splitlines()) == ["[worker 0] read all", "[worker 1] read all"]


def test_the_only_worker_reads_what_the_command_does(staged):
    assert staged.run("run", *shell("cat; echo read all"), input="typed\n").stdout == (
        "[worker 0] typed\n[worker 0] read all\n")


def test_the_only_worker_reads_what_is_typed_at_a_terminal(staged):
    ours, terminal = pty.openpty()
    run = staged.start("run", *shell("echo ready; read line; echo got $line"), stdin=terminal)
    os.close(terminal)
    read_until(run.stdout, 1, "ready")
    os.write(ours, b"typed\n")
    assert "[worker 0] got typed" in run.communicate(timeout=LIMIT)[0]
    os.close(ours)
    assert run.returncode == 0


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
    scheduler_that_says(staged, "worker 0", "worker 1", "worker 2", reason="worker 1 gave up")
    write_program(staged.path.parent / "bandoneon-server", f"#!/bin/sh\n: > {staged.temporary}/over; exit 1\n")
    line = f"while ! [ -e {staged.temporary}/over ]; do sleep 0.1; done; [ $RANK = 0 ] && exit 0; exit $((6 + RANK))"
    done = staged.run("run", "-n", 3, "-s", 1, *shell(line))
    assert done.returncode == 7
    lines = done.stderr.splitlines()
    assert [line for line in lines if "because" in line] == lines[-1:]
    assert lines[-1].startswith("[run] the job failed because worker 1 (pid ")
    assert lines[-1].endswith(" exited with code 7: worker 1 gave up")
    assert lines[-2].startswith("[run] others that ended with errors: server 0 (pid ")


def test_who_hangs_is_the_cause_and_not_who_survives_it(staged):
    scheduler_that_says(staged, "worker 1", reason="worker 1 (node 3, here) stopped answering 5.1 s ago, after step 12")
    line = "if [ $RANK = 1 ]; then kill -STOP $$; fi; echo worker 1 is lost >&2; exit 1"
    done = staged.run("run", "-n", 3, "-s", 1, "--linger", "0s", "--grace", "100ms", *shell(line))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("[run] the job failed because worker 1 (pid "), done.stderr
    assert last.endswith(" was lost: worker 1 (node 3, here) stopped answering 5.1 s ago, after step 12")
    assert done.returncode == 1


def test_of_a_host_the_process_that_failed_is_the_cause(staged):
    write_program(staged.path.parent / "bandoneon-worker", "#!/bin/sh\nexec sleep 1000\n")
    scheduler_that_says(staged, "worker 0", reason="host 0 (ranks 0-1) left with an error: worker 1 (process 5): odd")
    line = "if [ $RANK = 1 ]; then sleep 0.2; exit 7; fi; exit 3"
    done = staged.run("run", "--hosts", 1, "--procs-per-host", 2, "--linger", "5s", *shell(line))
    assert done.returncode == 7
    assert "because worker 1 (pid" in done.stderr.splitlines()[-1]


def scheduler_of_a_job_that_has_begun(staged, then="exec sleep 1000"):
    scheduler = staged.path.parent / "bandoneon-scheduler"
    write_program(scheduler, scheduler.read_text().replace("echo 4242", "echo all nodes have joined >&2\necho 4242")
                  .replace("exec sleep 1000", then))


@pytest.mark.parametrize("options, code", [(["--set", "min-workers=1"], 0), ([], 75)], ids=["may be lost", "is needed"])
def test_the_processes_of_a_host_that_is_out_may_end_before_its_daemon(staged, options, code):
    write_program(staged.path.parent / "bandoneon-worker", "#!/bin/sh\nexec sleep 1000\n")
    scheduler_of_a_job_that_has_begun(staged)
    line = "[ $RANK -ge 2 ] && exit 75; sleep 0.5"
    done = staged.run("run", "--hosts", 2, "--procs-per-host", 2, "--linger", "5s", *options, *shell(line))
    assert done.returncode == code, done.stderr
    assert ("exited with code 75; the job goes on with 1 of 2" in done.stderr) == (code == 0)


@pytest.mark.parametrize("waits, signal_name", [("exec sleep 1000", "15 (Terminated)"), ("kill -STOP $$", "9 (Killed)")],
                         ids=["waits", "is stopped"])
@pytest.mark.parametrize("line", ["the job is done, without worker 1", '{"message":"the job is done, without worker 1","x":"y"}'],
                         ids=["text", "json"])
def test_a_worker_that_the_job_has_ended_without_is_ended(staged, line, waits, signal_name):
    begun = staged.temporary.parent / "begun"
    scheduler_of_a_job_that_has_begun(staged, f"while ! [ -e {begun} ]; do sleep 0.05; done; echo '{line}' >&2\nexit 0")
    done = staged.run("run", "-n", 3, "--set", "min-workers=1", "--linger", "300ms", "--grace", "300ms",
                      *shell(f"[ $RANK = 1 ] && : > {begun} && {waits}; sleep 1; echo $RANK has ended"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[worker 0] 0 has ended", "[worker 2] 2 has ended"]
    assert re.search(r"^\[run\] the job is done without worker 1 \(pid \d+\), which is told to end$", done.stderr, re.MULTILINE)
    assert re.fullmatch(r"\[run\] the job has ended without those that it lost: worker 1 \(pid \d+\) was killed by signal "
                        + re.escape(signal_name), done.stderr.splitlines()[-1])


def test_one_error_is_said_once(staged):
    traceback = "Traceback (most recent call last):\\n  File a.py, line 1\\n"
    mine, others = "ValueError: odd", "bandoneon.errors.JobFailed: worker 1 left with an error: ValueError: odd"
    scheduler_that_says(staged, "worker 1", reason="worker 1 left with an error: ValueError: odd (exit status 1)")
    line = f"""if [ $RANK = 1 ]; then printf '{traceback}{mine}\\n' >&2; exit 1; fi
        printf 'before\\n{traceback}{others}\\n' >&2; exit 1"""
    done = staged.run("run", "-n", 4, "-s", 2, *shell(line))
    assert done.stderr.count("Traceback") == 1 and done.stderr.count("before") == 3, done.stderr
    assert len([line for line in done.stderr.splitlines() if mine in line]) == 2, done.stderr  # its own, and the last


def test_an_interrupt_ends_in_few_lines(staged):
    traceback = "Traceback (most recent call last):\\n  File a.py, line 1\\nKeyboardInterrupt\\n"
    line = f"trap \"printf '{traceback}' >&2; trap - INT; kill -INT $$\" INT; echo ready; while :; do sleep 0.1; done"
    run = staged.start("run", "-n", 8, "-s", 2, *shell(line))
    read_until(run.stdout, 8, "ready")
    seen = read_until(run.stderr, 1, "see bandoneon status")
    run.send_signal(signal.SIGINT)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + signal.SIGINT
    assert len(error.splitlines()) <= 5 and "Traceback" not in error, seen + [error]


def test_progress_bars_and_prompts_are_seen_before_their_lines_end(staged):
    # Each waits for what is typed, so that nothing but patience shows it.
    line = "printf ' 10%%\\r'; read x; printf 'name? '; read name; echo hello $name"
    run = staged.start("run", *shell(line), stdin=subprocess.PIPE)
    assert read_bytes(run.stdout, "\r") == "[worker 0]  10%\r"
    run.stdin.write("\n")
    run.stdin.flush()
    assert read_bytes(run.stdout, "? ") == "[worker 0] name? "
    out, _ = run.communicate("me\n", timeout=LIMIT)
    assert out == "hello me\n"


def test_the_master_port_is_held_for_who_asks_to_share_it(staged):
    program = """
import os, socket
port, taken = int(os.environ["MASTER_PORT"]), []
for share in (0, 1):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, share)
    try:
        server.bind(("127.0.0.1", port))
        server.listen()
        taken.append("had")
    except OSError:
        taken.append("held")
print(*taken)
"""
    done = staged.run("run", "--", sys.executable, "-c", program)
    assert done.stdout == "[worker 0] held had\n", done.stderr


def test_a_host_without_ipv4_is_enough(staged):
    """In a network of its own, whose loopback has ::1 alone."""
    line = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec \"$@\""
    inside = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", line, "-"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespaces here")
    done = subprocess.run([*inside, staged.path, "run", "--", "sh", "-c", "echo $BANDONEON_SCHEDULER $MASTER_ADDR"],
                          env=staged.environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.stdout == "[worker 0] [::1]:4242 ::1\n", done.stderr


def read_bytes(stream, end):
    """Up to `end`, as it comes."""
    text = ""
    while not text.endswith(end):
        piece = os.read(stream.fileno(), 1).decode()
        assert piece, f"ended before {end!r}: {text!r}"
        text += piece
    return text


def scheduler_that_says(staged, *who, reason):
    """A stand-in for the scheduler that has recorded whose failure it was."""
    text = "".join(name + "\\n" for name in who) + f"\\n{reason}\\n"
    scheduler = staged.path.parent / "bandoneon-scheduler"
    write_program(scheduler, scheduler.read_text().replace(
        "do case $arg in", f"do case $arg in --failure-file=*) printf '{text}' > ${{arg#*=}};;"))


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


def scheduler_that_tells_its_arguments(staged):
    """A stand-in that writes its command line, a line each, to the file that is returned, before it says that it listens."""
    told = staged.temporary.parent / "told"
    scheduler = staged.path.parent / "bandoneon-scheduler"
    write_program(scheduler, scheduler.read_text().replace("echo 4242", f'echo "$BANDONEON_JOB_ID $$ $@" >> {told}\necho 4242'))
    return told


def await_schedulers(told, run, count):
    """The command lines of so many schedulers, once the last of them has begun."""
    while not (told.exists() and told.read_text().count("\n") >= count):
        assert run.poll() is None, run.communicate()
        time.sleep(0.01)
    return [line.split() for line in told.read_text().splitlines()]


def kill_schedulers(told, run, count):
    """Kills so many schedulers, one after the other, by SIGKILL. Returns their command lines."""
    for number in range(1, count + 1):
        os.kill(int(await_schedulers(told, run, number)[-1][1]), signal.SIGKILL)
    return await_schedulers(told, run, count)


def test_a_scheduler_that_a_signal_ended_is_started_again_at_its_address(staged):
    told = scheduler_that_tells_its_arguments(staged)
    line = "echo ready; while ! [ -e go ]; do sleep 0.05; done"
    run = staged.start("run", "-n", 2, "-s", 1, "--restarts", 2, "--seed", 7, *shell(f"cd {told.parent}; {line}"))
    read_until(run.stdout, 2, "ready")
    kill_schedulers(told, run, 2)
    seen = read_until(run.stderr, 2, "is started again")
    lines = await_schedulers(told, run, 3)
    (told.parent / "go").touch()
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, error
    first, *later = [dict(word.removeprefix("--").split("=", 1) for word in words[2:]) for words in lines]
    assert {words[0] for words in lines} == {lines[0][0]}, "all of one job"
    assert later == [first | {"listen": "127.0.0.1:4242"}] * 2 and first["seed"] == "7"
    journal = pathlib.Path(first["journal"])
    assert journal.name == "journal" and journal.parent == pathlib.Path(first["port-file"]).parent
    pids = [words[1] for words in lines]
    for number in range(2):
        (line,) = [line for line in seen if f"{number + 1} of 2" in line]
        assert line == (f"[run] scheduler (pid {pids[number]}) was killed by signal 9 (Killed); it is started again, "
                        f"{number + 1} of 2 times, and goes on with the job")
    assert error.splitlines()[-1] == (
        f"[run] the scheduler was started again 2 times, after scheduler (pid {pids[0]}) was killed by signal 9 (Killed), "
        f"scheduler (pid {pids[1]}) was killed by signal 9 (Killed)")
    assert staged.left_behind() == []


def test_the_end_of_a_scheduler_is_the_jobs_once_its_restarts_are_used_up(staged):
    told = scheduler_that_tells_its_arguments(staged)
    run = staged.start("run", "--restarts", 1, "--linger", "0s", *shell("echo ready; exec sleep 1000"))
    read_until(run.stdout, 1, "ready")
    first, second = (words[1] for words in kill_schedulers(told, run, 2))
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + 9
    assert error.splitlines()[-1] == (
        f"[run] the job failed because scheduler (pid {second}) was killed by signal 9 (Killed); "
        f"the scheduler was started again once, after scheduler (pid {first}) was killed by signal 9 (Killed)")


def test_a_scheduler_that_is_told_to_end_leaves_the_job_to_another(staged):
    told = scheduler_that_tells_its_arguments(staged)
    path = staged.path.parent / "bandoneon-scheduler"
    leave = 'trap "echo the job goes on: its nodes wait up to 10m for a scheduler >&2; exit 0" TERM'
    # Before it tells that it runs.
    text = path.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{leave}\n")
    write_program(path, text.replace("exec sleep 1000", "sleep 1000 & wait"))
    run = staged.start("run", "--restarts", 1, "--linger", "0s", *shell("echo ready; exec sleep 1000"))
    read_until(run.stdout, 1, "ready")
    for number in (1, 2):
        os.kill(int(await_schedulers(told, run, number)[-1][1]), signal.SIGTERM)
    first, second = (words[1] for words in await_schedulers(told, run, 2))
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 1, error
    assert error.splitlines()[-1] == (
        f"[run] the job failed because scheduler (pid {second}) was lost; "
        f"the scheduler was started again once, after scheduler (pid {first}) was told to end")


def test_a_scheduler_that_has_ended_well_is_not_started_again(staged):
    told = scheduler_that_tells_its_arguments(staged)
    path = staged.path.parent / "bandoneon-scheduler"
    write_program(path, path.read_text().replace("exec sleep 1000", f": > {told.parent}/over"))
    line = f"while ! [ -e {told.parent}/over ]; do sleep 0.05; done"
    done = staged.run("run", "--restarts", 3, *shell(line))
    assert done.returncode == 0 and len(told.read_text().splitlines()) == 1, done.stderr


@pytest.mark.parametrize("options", [[], ["--restarts", 0]])
def test_without_restarts_there_is_no_journal_and_a_lost_scheduler_is_the_end(staged, options):
    told = scheduler_that_tells_its_arguments(staged)
    run = staged.start("run", "--linger", "0s", *options, *shell("echo ready; exec sleep 1000"))
    read_until(run.stdout, 1, "ready")
    ((_, pid, *arguments),) = kill_schedulers(told, run, 1)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + 9
    assert error.splitlines()[-1] == f"[run] the job failed because scheduler (pid {pid}) was killed by signal 9 (Killed)"
    assert "--journal" not in "".join(arguments) and len(told.read_text().splitlines()) == 1


def servers_that_tell_their_arguments(staged, joined=True):
    """As scheduler_that_tells_its_arguments, of the servers of a job that has begun."""
    told = staged.temporary.parent / "told"
    write_program(staged.path.parent / "bandoneon-server",
                  f'#!/bin/sh\necho "$BANDONEON_JOB_ID $$ $@ $BANDONEON_FURTHER" >> {told}\nexec sleep 1000\n')
    scheduler = staged.path.parent / "bandoneon-scheduler"
    if joined:
        write_program(scheduler, scheduler.read_text().replace("echo 4242", "echo all nodes have joined >&2\necho 4242"))
    return told


def pid_of(lines, rank):
    """The pid of the last server of the rank that has begun."""
    return [int(pid) for _, pid, *arguments in lines if f"--rank={rank}" in arguments][-1]


def test_a_server_that_a_signal_ended_is_started_again_as_it_was(staged):
    told = servers_that_tell_their_arguments(staged)
    line = "echo ready; while ! [ -e go ]; do sleep 0.05; done"
    run = staged.start("run", "-n", 1, "-s", 2, "--restarts", 3, "--set", "further=7", *shell(f"cd {told.parent}; {line}"))
    read_until(run.stdout, 1, "ready")
    ends = []
    for number, (rank, by) in enumerate([(1, signal.SIGKILL), (0, signal.SIGSEGV), (1, signal.SIGKILL)]):
        pid = pid_of(await_schedulers(told, run, 2 + number), rank)
        os.kill(pid, by)
        (seen,) = [line for line in read_until(run.stderr, 1, "is started again") if "is started again" in line]
        ends.append(f"server {rank} (pid {pid}) was killed by signal {by.value} ({signal.strsignal(by)})")
        assert seen == f"[run] {ends[-1]}; it is started again, {number + 1} of 3 times, and goes on with the job"
    lines = await_schedulers(told, run, 5)
    (told.parent / "go").touch()
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, error
    for rank in (0, 1):
        of_rank = [[job, *arguments] for job, _, *arguments in lines if f"--rank={rank}" in arguments]
        assert of_rank == [of_rank[0]] * (2 + rank) and "--listen=tcp://127.0.0.1:0" in of_rank[0] and of_rank[0][-1] == "7"
    assert error.splitlines()[-1] == (
        f"[run] server 0 was started again once, after {ends[1]}; server 1 was started again 2 times, after {ends[0]}, {ends[2]}")
    assert staged.left_behind() == []


def test_without_restarts_the_job_goes_on_while_a_server_runs(staged):
    told = servers_that_tell_their_arguments(staged)
    run = staged.start("run", "-s", 2, "--linger", "0s", *shell("echo ready; exec sleep 1000"))
    read_until(run.stdout, 1, "ready")
    lines = await_schedulers(told, run, 2)
    first, second = (pid_of(lines, rank) for rank in (1, 0))
    os.kill(first, signal.SIGKILL)
    read_until(run.stderr, 1, f"server 1 (pid {first}) was killed by signal 9 (Killed); the job goes on with 1 of 2 servers")
    assert run.poll() is None
    os.kill(second, signal.SIGKILL)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + 9
    assert error.splitlines()[-1] == f"[run] the job failed because server 0 (pid {second}) was killed by signal 9 (Killed)"


def test_the_last_line_names_the_servers_that_were_lost(staged):
    told = servers_that_tell_their_arguments(staged)
    line = "echo ready; while ! [ -e go ]; do sleep 0.05; done"
    run = staged.start("run", "-s", 2, "--restarts", 1, *shell(f"cd {told.parent}; {line}"))
    read_until(run.stdout, 1, "ready")
    first = pid_of(await_schedulers(told, run, 2), 0)
    os.kill(first, signal.SIGKILL)
    second = pid_of(await_schedulers(told, run, 3), 0)
    os.kill(second, signal.SIGKILL)
    read_until(run.stderr, 1, "the job goes on with 1 of 2 servers")
    (told.parent / "go").touch()
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, error
    assert error.splitlines()[-1] == (
        f"[run] the job has ended without those that it lost: server 0 (pid {second}) was killed by signal 9 (Killed); "
        f"server 0 was started again once, after server 0 (pid {first}) was killed by signal 9 (Killed)")


@pytest.mark.parametrize("options, begun", [(["--restarts", 3, "--set", "replay-steps=0"], True), ([], False)],
                         ids=["replay-steps=0", "not begun"])
def test_a_lost_server_is_the_end_where_nothing_is_replayed_or_the_job_has_not_begun(staged, options, begun):
    told = servers_that_tell_their_arguments(staged, begun)
    run = staged.start("run", "-s", 2, "--linger", "0s", *options, *shell("echo ready; exec sleep 1000"))
    read_until(run.stdout, 1, "ready")
    pid = pid_of(await_schedulers(told, run, 2), 1)
    os.kill(pid, signal.SIGKILL)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + 9
    assert error.splitlines()[-1] == f"[run] the job failed because server 1 (pid {pid}) was killed by signal 9 (Killed)"


def test_a_server_that_is_lost_before_the_job_has_begun_is_started_again(staged):
    told = servers_that_tell_their_arguments(staged, joined=False)
    line = "echo ready; while ! [ -e go ]; do sleep 0.05; done"
    run = staged.start("run", "-s", 2, "--restarts", 1, "--linger", "0s", *shell(f"cd {told.parent}; {line}"))
    read_until(run.stdout, 1, "ready")
    pid = pid_of(await_schedulers(told, run, 2), 1)
    os.kill(pid, signal.SIGKILL)
    assert pid_of(await_schedulers(told, run, 3), 1) != pid
    (told.parent / "go").touch()
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, error
    assert error.splitlines()[-1] == f"[run] server 1 was started again once, after server 1 (pid {pid}) was killed by signal 9 (Killed)"


class Told:
    """A job of stand-ins that has begun: its scheduler says whatever it is told to, and its workers wait for files."""

    def __init__(self, staged):
        self._folder = staged.temporary.parent
        self._said = 0
        self._staged = staged
        loop = "while :; do if [ -e say-$n ]; then cat say-$n >&2; n=$((n+1)); fi; sleep 0.02; done"
        scheduler_of_a_job_that_has_begun(staged, f"cd {self._folder}; n=1; {loop}")

    def start(self, line, *options, workers=("-n", 3), linger="0s"):
        """Runs this line of shell in each worker, where `await FILE` waits for a file."""
        shown = ("echo pid $$ of $RANK, restarts ${TORCHELASTIC_RESTART_COUNT-none}, "
                 "$WORLD_SIZE $LOCAL_RANK $MASTER_PORT $BANDONEON_JOB_ID $BANDONEON_X")
        wait = "await() { while ! [ -e $1 ]; do sleep 0.02; done; }"
        self.run = self._staged.start("run", *workers, "--set", "x=7", "--set", "min-workers=1", "--linger", linger, *options,
                                      *shell(f"cd {self._folder}; {wait}; {shown}; {line}"))
        self.seen = read_until(self.run.stdout, 3, "pid")
        return self

    def say(self, line):
        self._said += 1
        self.touch("new", line + "\n").rename(self._folder / f"say-{self._said}")

    def touch(self, name, text=""):
        (self._folder / name).write_text(text)
        return self._folder / name

    def pid(self, rank):
        """Of the process of the rank that was started last."""
        return [int(text.split()[3]) for text in self.seen if text.startswith(f"[worker {rank}] pid")][-1]

    def kill(self, rank, number=signal.SIGKILL):
        pid = self.pid(rank)
        os.kill(pid, number)
        return f"worker {rank} (pid {pid}) was killed by signal {number.value} ({signal.strsignal(number)})"

    def await_start(self):
        self.seen += read_until(self.run.stdout, 1, "pid")

    def await_end(self, rank):
        """Until `run` has seen its end."""
        while pathlib.Path(f"/proc/{self.pid(rank)}").exists():
            time.sleep(0.01)

    def hear(self, text):
        return read_until(self.run.stderr, 1, text)[-1]

    def end(self):
        """The exit code, and the lines of standard error that were not read yet."""
        self.rest, error = self.run.communicate(timeout=LIMIT)
        assert self._staged.left_behind() == []
        return self.run.returncode, error.splitlines()


@pytest.fixture
def told(staged):
    return Told(staged)


def test_a_worker_that_a_signal_or_status_75_ended_is_started_again_as_it_was(told):
    told.start("[ $RANK$TORCHELASTIC_RESTART_COUNT = 11 ] && exit 75; await go", "--restarts", 100)
    first = told.kill(1)
    assert told.hear("is started again") == f"[run] {first}; it is started again in 1 s, restart 1 of 100"
    told.await_start()
    second = f"worker 1 (pid {told.pid(1)}) exited with code 75"
    assert told.hear("is started again") == f"[run] {second}; it is started again in 2 s, restart 2 of 100"
    third = told.kill(2, signal.SIGSEGV)
    assert told.hear("is started again") == f"[run] {third}; it is started again in 1 s, restart 3 of 100"
    told.await_start()
    told.await_start()
    told.touch("go")
    code, lines = told.end()
    assert code == 0
    assert lines[-1] == f"[run] worker 1 was started again 2 times, after {first}, {second}; worker 2 was started again once, after {third}"
    of_one = [text.split(" of ", 1)[1] for text in told.seen if text.startswith("[worker 1]")]
    assert of_one == [of_one[0], *(of_one[0].replace("none", str(times)) for times in (1, 2))] and of_one[0].endswith(" 7")


def test_a_worker_that_was_started_again_and_fails_by_itself_ends_the_job_that_took_it_in(told):
    told.start("[ $TORCHELASTIC_RESTART_COUNT ] && await fail && exit 3; await go", "--restarts", 5)
    first = told.kill(1)
    told.await_start()
    told.say("the job goes on, with 3 of 3 workers: with worker 1 (node 6, here:5)")
    told.hear("3 of 3")
    told.touch("fail")
    told.await_end(1)
    told.say("the job is done")  # Which is no excuse.
    code, lines = told.end()
    assert code == 3
    assert lines[-1] == (f"[run] the job failed because worker 1 (pid {told.pid(1)}) exited with code 3; "
                         f"worker 1 was started again once, after {first}")


def test_a_newcomer_that_fails_before_it_is_taken_in_disturbs_nobody(told):
    told.start("[ $TORCHELASTIC_RESTART_COUNT ] && exit 3; await go", "--restarts", 5)
    first = told.kill(1)
    told.await_start()
    failed = f"worker 1 (pid {told.pid(1)}) exited with code 3"
    assert told.hear("taken it in") == (f"[run] {failed} before the job had taken it in; it is not started again, and the job "
                                        "goes on without it")
    told.touch("go")
    code, lines = told.end()
    assert code == 0
    assert lines[-1] == f"[run] the job has ended without those that it lost: {failed}; worker 1 was started again once, after {first}"


def test_a_worker_is_lost_once_the_restarts_are_used_up(told):
    told.start("await go", "--restarts", 1)
    first = told.kill(1)
    told.await_start()
    second = told.kill(1)
    assert told.hear("goes on") == f"[run] {second}; the job goes on with 2 of 3"
    third = told.kill(0)
    assert told.hear("goes on") == f"[run] {third}; the job goes on with 1 of 3"
    told.touch("go")
    code, lines = told.end()
    assert code == 0
    assert lines[-1] == (f"[run] the job has ended without those that it lost: {second}; {third}; "
                         f"worker 1 was started again once, after {first}")


def test_no_worker_is_started_again_where_too_few_are_left(told):
    told.start("await go", "--restarts", 9)
    for rank in (0, 1):
        told.kill(rank)
        told.hear("is started again in 1 s")
    # Before the others are there again.
    last = told.kill(2)
    code, lines = told.end()
    assert code == 128 + signal.SIGKILL and lines[-1] == f"[run] the job failed because {last}"


def test_a_worker_is_not_started_again_once_another_has_ended_well(told):
    told.start("await go-$RANK", "--restarts", 9)
    first = told.kill(1)
    told.hear("is started again in 1 s")
    told.touch("go-0")
    assert told.hear("not started") == "[run] worker 1 is not started again: the job is at its end"
    second = told.kill(2)
    code, lines = told.end()
    assert code == 0
    assert lines[-1] == f"[run] the job has ended without those that it lost: {first}; {second}"
    assert not [line for line in lines if "is started again" in line]


@pytest.mark.parametrize("comes", ["before", "after"])
def test_a_worker_that_is_refused_at_the_end_of_the_job_is_no_failure(told, comes):
    told.start("[ $TORCHELASTIC_RESTART_COUNT ] && await fail && exit 1; await go", "--restarts", 9)
    first = told.kill(1)
    told.await_start()
    if comes == "before":
        told.say("the job is done")
        told.hear("is done")
    told.touch("fail")
    if comes == "after":
        told.await_end(1)
        told.say("the job is done")
    refused = f"worker 1 (pid {told.pid(1)}) exited with code 1"
    assert told.hear("taken it in").startswith(f"[run] {refused} before the job had taken it in; it is not started again")
    told.touch("go")
    code, lines = told.end()
    assert code == 0
    assert lines[-1] == (f"[run] the job has ended without those that it lost: {refused}; "
                         f"worker 1 was started again once, after {first}")


def test_a_worker_that_was_started_again_too_late_does_not_hold_up_the_end(told):
    told.start("[ $TORCHELASTIC_RESTART_COUNT ] && exec sleep 1000; await go", "--restarts", 9)
    first = told.kill(1)
    told.await_start()
    told.say("the job is done, without worker 1")
    told.hear("is done")
    told.touch("go")
    code, lines = told.end()
    assert code == 0
    assert lines[-1] == (f"[run] the job has ended without those that it lost: worker 1 (pid {told.pid(1)}) was killed by signal 15 "
                         f"(Terminated); worker 1 was started again once, after {first}")


@pytest.mark.parametrize("way", ["a signal for run", "a failure"])
def test_a_worker_is_not_started_again_when_run_ends_all(told, way):
    line = 'trap "sleep 2; exit 0" INT; await fail; [ $RANK = 0 ] && exit 7; sleep 2'
    told.start(line, "--restarts", 9, "--grace", "9s", linger="9s")
    told.kill(1)
    told.hear("is started again in 1 s")
    if way == "a failure":
        told.touch("fail")
    else:
        told.run.send_signal(signal.SIGINT)
    assert told.end()[0] == (7 if way == "a failure" else 128 + signal.SIGINT)
    assert "pid" not in told.rest


@pytest.mark.parametrize("options", [["--restarts", 0], ["--restarts", 9, "--set", "log-level=warning"]], ids=["none", "quiet"])
def test_restarts_of_workers_need_a_number_and_no_log(told, options):
    told.start("await go", *options)
    first = told.kill(1)
    if options[1] == 0:
        assert told.hear("goes on") == f"[run] {first}; the job goes on with 2 of 3"
    else:
        told.await_start()
    told.touch("go")
    assert told.end()[0] == 0


def test_a_worker_that_is_lost_before_the_job_has_begun_ends_it(staged):
    done = staged.run("run", "-n", 2, "--restarts", 9, "--set", "min-workers=1", "--linger", "0s",
                      *shell("[ $RANK = 1 ] && kill -9 $$; exec sleep 1000"))
    assert done.returncode == 128 + signal.SIGKILL and "started again" not in done.stderr


class Hosts:
    """Three hosts of stand-ins for daemons, whose ends a test decides, with a process or two each."""

    def __init__(self, staged, told, processes, *options):
        self._pids, self._told = told.touch("hosts"), told
        write_program(staged.path.parent / "bandoneon-worker",
                      f"""#!/bin/sh\necho $$ $1 >> {self._pids}\nwhile ! [ -e {self._pids}-end-$1 ]; do sleep 0.02; done\nexit 0\n""")
        told.start("await end-$RANK; exit $(cat end-$RANK)", "--restarts", 9, *options, workers=("--hosts", 3, "--procs-per-host", processes))
        if processes == 2:
            told.seen += read_until(told.run.stdout, 3, "pid")

    def pid(self, number):
        """Of the daemon of the host that was started last."""
        return [int(line.split()[0]) for line in self._pids.read_text().splitlines() if line.endswith(f"--rank={number}")][-1]

    def starts(self, number):
        return self._pids.read_text().count(f"--rank={number}\n")

    def kill(self, number):
        pid = self.pid(number)
        os.kill(pid, signal.SIGKILL)
        return f"host {number} (pid {pid}) was killed by signal 9 (Killed)"

    def end(self, *ranks, code=0):
        for rank in ranks:
            self._told.touch("new", f"{code}\n").rename(self._pids.parent / f"end-{rank}")

    def end_daemon(self, number):
        self._told.touch(f"hosts-end---rank={number}")


def test_a_host_is_started_again_once_its_daemon_and_all_its_processes_have_ended(staged, told):
    hosts = Hosts(staged, told, 2)
    lost = hosts.kill(1)
    hosts.end(2, code=75)
    told.await_end(2)
    assert hosts.starts(1) == 1, "a process of it still runs"
    hosts.end(3, code=1)
    assert told.hear("is started again") == f"[run] {lost}; host 1 is started again with its processes in 1 s, restart 1 of 9"
    for rank in (2, 3):
        (hosts._pids.parent / f"end-{rank}").unlink()
    told.await_start()
    told.await_start()
    assert hosts.starts(1) == 2 and [hosts.starts(number) for number in (0, 2)] == [1, 1]
    assert sorted(text.split(" of ", 1)[1].split()[:3] for text in told.seen[-2:]) == [["2,", "restarts", "1,"], ["3,", "restarts", "1,"]]
    # A process that is lost, too: its daemon leaves, and the other one.
    killed = told.kill(2)
    told.say("the job goes on, with 2 of 3 workers: without host 1 (ranks 2-3; node 6, here:5), which left: worker 2 ended")
    hosts.end(3, code=75)
    hosts.end_daemon(1)
    assert told.hear("is started again") == f"[run] {killed}; host 1 is started again with its processes in 2 s, restart 2 of 9"
    (hosts._pids.parent / "end-3").unlink()
    (hosts._pids.parent / "hosts-end---rank=1").unlink()
    told.await_start()
    told.await_start()
    for rank in range(6):
        hosts.end(rank)
    code, lines = told.end()
    assert code == 0
    assert lines[-1] == f"[run] host 1 was started again 2 times, after {lost}, {killed}"


def test_a_host_that_has_left_is_started_again_where_a_process_asks_for_it(staged, told):
    hosts = Hosts(staged, told, 2)
    told.say("the job goes on, with 2 of 3 workers: without host 0 (ranks 0-1; node 6, here:5), which left: it was to go")
    told.hear("2 of 3")
    hosts.end_daemon(0)
    hosts.end(0)
    hosts.end(1, code=75)
    assert "host 0 is started again with its processes in 1 s" in told.hear("is started again")
    told.say("the job goes on, with 1 of 3 workers: without host 2 (ranks 4-5; node 7, here:5), which left: it was to go")
    told.hear("1 of 3")
    hosts.end_daemon(2)
    hosts.end(4, 5)
    assert "host 2 is not started again, and the job goes on without it" in told.hear("not started again")
    for rank in range(4):
        hosts.end(rank)
    code, lines = told.end()
    assert code == 0, lines


def test_a_host_whose_program_fails_while_it_comes_disturbs_nobody(staged, told):
    hosts = Hosts(staged, told, 1)
    hosts.kill(1)
    hosts.end(1, code=75)
    told.hear("host 1 is started again")
    hosts.end(1, code=3)
    told.await_start()
    told.say("the job goes on, with 2 of 3 workers: without host 5")
    hosts.end_daemon(1)
    assert "exited with code 3 after its host had left the job; host 1 is not started again" in told.hear("not started again")
    hosts.end(0, 2)
    assert told.end()[0] == 0


def test_a_process_that_fails_by_itself_ends_the_job_of_hosts(staged, told):
    hosts = Hosts(staged, told, 1)
    hosts.end(1, code=3)
    code, lines = told.end()
    assert code == 3 and "started again" not in "".join(lines)


def test_without_restarts_a_lost_host_is_named(staged, told):
    pids = told.touch("hosts")
    write_program(staged.path.parent / "bandoneon-worker", f"#!/bin/sh\necho $$ >> {pids}\nexec sleep 1000\n")
    told.start("await go", workers=("--hosts", 3, "--procs-per-host", 1))
    os.kill(int(pids.read_text().split()[1]), signal.SIGKILL)
    assert told.hear("goes on").endswith("was killed by signal 9 (Killed); the job goes on with 2 of 3")
    told.touch("go")
    code, lines = told.end()
    assert code == 0 and "started again" not in lines[-1]


def test_a_worker_elsewhere_is_started_again_there(staged, told, tmp_path):
    # A stand-in for ssh, whose last argument is the command line for the other host. It ends like one that is not let in while
    # the file is there.
    closed = tmp_path / "closed"
    write_program(tmp_path / "ssh", f'#!/bin/sh\n[ -e {closed} ] && exit 255\nfor last; do :; done\nexec sh -c "$last"\n')
    staged.environment["PATH"] = f"{tmp_path}:{staged.environment['PATH']}"
    told.start("await go", "--restarts", 9, "--advertise", "127.0.0.1", workers=("--ssh", "a:1,b:2"))
    told.seen = [text.replace(" at a]", "]").replace(" at b]", "]") for text in told.seen]
    os.kill(told.pid(2), signal.SIGKILL)
    first = told.hear("it is started again in 1 s, restart 1 of 9")
    assert re.fullmatch(r"\[run\] worker 2 at b \(pid \d+\) was killed by signal 9 \(Killed\); .*", first)
    closed.touch()
    second = told.hear("it is started again in 2 s, restart 2 of 9")
    assert re.fullmatch(r"\[run\] worker 2 at b \(pid \d+\) exited with code 255; .*", second)
    closed.unlink()
    told.await_start()
    assert told.seen[-1].split(", ")[1:] == ["restarts 2", told.seen[0].split(", ")[2].replace("3 0", "3 1")]
    told.touch("go")
    code, lines = told.end()
    assert code == 0
    assert "worker 2 at b was started again 2 times, after worker 2 at b" in lines[-1]


def test_a_journal_of_ones_own_is_kept(staged):
    told = scheduler_that_tells_its_arguments(staged)
    done = staged.run("run", "--restarts", 1, "--set", "journal=/some/journal", *shell("echo $BANDONEON_JOURNAL"))
    assert done.stdout == "[worker 0] /some/journal\n" and "--journal" not in told.read_text(), done.stderr


def test_a_scheduler_that_fails_by_itself_is_not_started_again(staged):
    told = scheduler_that_tells_its_arguments(staged)
    path = staged.path.parent / "bandoneon-scheduler"
    write_program(path, path.read_text().replace("exec sleep 1000", "exit 6"))
    done = staged.run("run", "--restarts", 3, "--linger", "0s", *shell("exec sleep 1000"))
    assert done.returncode == 6 and len(told.read_text().splitlines()) == 1
    assert "started again" not in done.stderr


def test_a_scheduler_that_the_end_of_the_job_ends_is_not_started_again(staged):
    told = scheduler_that_tells_its_arguments(staged)
    assert staged.run("run", "--restarts", 3, *shell("true")).returncode == 0
    assert staged.run("run", "--restarts", 3, *shell("exit 7")).returncode == 7
    run = staged.start("run", "--restarts", 3, *shell("echo ready; exec sleep 1000"))
    read_until(run.stdout, 1, "ready")
    run.send_signal(signal.SIGINT)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + signal.SIGINT and "started again" not in error
    # One that is lost while the workers, told to end, still do so.
    run = staged.start("run", "--restarts", 3, *shell('trap "" TERM; echo ready; while :; do sleep 0.1; done'))
    read_until(run.stdout, 1, "ready")
    run.terminate()
    read_until(run.stderr, 1, "passed on")
    os.kill(int(await_schedulers(told, run, 4)[-1][1]), signal.SIGKILL)
    run.terminate()
    run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + signal.SIGTERM
    assert len(told.read_text().splitlines()) == 4, "one of each run"


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
    (["--restarts", "-1", "--", "true"], "--restarts is '-1'"),
    (["--restarts", "often", "--", "true"], "--restarts is 'often'"),
    (["--set", "replay-steps=many", "--", "true"], "setting replay-steps is 'many', which is no number"),
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


def test_daemons_are_commands(staged):
    for role in ("scheduler", "server", "worker"):
        write_program(staged.path.parent / f"bandoneon-{role}", '#!/bin/sh\necho $0 "$@"\n')
        assert staged.run(role, "--rank", 2).stdout == f"{staged.path.parent}/bandoneon-{role} --rank 2\n"
        (staged.path.parent / f"bandoneon-{role}").unlink()
        assert staged.run(role).returncode == 127


def test_unknown_commands_are_named(staged):
    assert "unknown command 'rnu'" in staged.run("rnu").stderr
    assert "unknown command 'bench push'; did you mean 'bench pushpull'?" in staged.run("bench", "push").stderr
    for given, meant in {"stat": "status", "statsu": "status", "doc": "doctor", "cert": "certs"}.items():
        assert f"unknown command '{given}'; did you mean '{meant}'?" in staged.run(given).stderr
    assert "unknown command 'xylophone'\n" in staged.run("xylophone").stderr
    assert "unknown option --schedular; did you mean '--scheduler'?" in staged.run("status", "--schedular", "a:1").stderr
    assert staged.run("--version").stdout.startswith("bandoneon 0.")
